"""Tests that cannot run with ``--shards``, each with its reason. The list may only shrink."""

from __future__ import annotations

_TRIPS = "it counts trips or connections, and each shard has its own"
_HOME = "it plays at the keys of one shard"
_INNER = "it looks into the listener of one shard"
_STUB = "its stub of a server has one shard"
_ALL_OR_NONE = "what one shard refuses the others may have stored (docs/cluster.md)"
_LIMITS = "a limited job of another shard waits in no lane of its limit (docs/design/limits.md)"
_PLACES = "its jobs live on different shards, which after= and a schedule refuse (docs/cluster.md)"
_EACH = "it expects one line, and each shard is told of"
_CHUNKS = "each shard confirms its chunk before the next is sent (docs/cluster.md)"
_LOST = "of a shard that lost everything, the next program that connects writes the number and the layout"
_PARTIAL = "a list without home shows the other shards (docs/cluster.md)"
_ONE = "the store of an old layout, which it makes, has one shard; of several the command tells of each"
_TAP = "it holds the first request of a kind, which may be that of another shard than its job's"
_KNOWN = "its producer knows no limit, so its jobs live anywhere, and wait in no lane (docs/design/limits.md)"
_OPERATION = "a bulk operation is a job on each shard (docs/cluster.md), and each shard counts up to its own bound"
_OWN = "it says itself how many shards there are"
_HOOKS = "each shard calls a hook once a second (docs/events.md)"
_EVICTED = "what names a shard may be evicted, too; such a shard is refused"

REASONS: dict[str, str] = {
    "tests/browser/test_outage_clicks.py::test_a_paused_limit_that_holds_everything": _LIMITS,
    "tests/dashboard/test_joint_client.py::test_more_trips_a_second_than_are_allowed_are_one": _TRIPS,
    "tests/dashboard/test_joint_client.py::test_what_is_asked_for_together_is_one_round_trip": _TRIPS,
    "tests/dashboard/test_trips.py::test_a_page_is_one_or_two_round_trips_however_many_jobs_there_are": _TRIPS,
    "tests/dashboard/test_trips.py::test_statistics_of_a_server_of_their_own_cost_one_more": _TRIPS,
    "tests/metrics/test_exporter.py::test_a_limit_that_holds_everything_is_seen": _HOME,
    "tests/metrics/test_exporter.py::test_a_scrape_is_three_round_trips_however_many_labels_there_are": _TRIPS,
    "tests/metrics/test_exporter.py::test_only_labels_that_changed_are_read_again": _TRIPS,
    "tests/metrics/test_exporter.py::test_statistics_on_a_server_of_their_own_cost_one_more": _TRIPS,
    "tests/metrics/test_exporter.py::test_what_was_broadcast_has_no_series_of_its_own_for_each_worker": _HOME,
    "tests/metrics/test_queue_loads.py::test_a_paused_queue_wants_what_runs": _HOME,
    "tests/metrics/test_queue_loads.py::test_it_is_read_in_one_round_trip_by_either_pair": _HOME,
    "tests/store/test_access.py::test_a_producer_enqueues_and_reads_nothing_of_a_job": _HOME,
    "tests/store/test_access.py::test_a_worker_of_its_own_user_runs_jobs_workflows_and_the_cache": _HOME,
    "tests/store/test_alarm_looks.py::test_a_look_costs_two_round_trips": _TRIPS,
    "tests/store/test_app.py::test_large_jobs_go_in_smaller_chunks": _TRIPS,
    "tests/store/test_app.py::test_many_jobs_stream_in_chunks": _TRIPS,
    "tests/store/test_app.py::test_who_waited_in_vain_hears_what_is_missing": _INNER,
    "tests/store/test_app_lists.py::test_a_filter_looks_at_a_bounded_number_and_goes_on_where_it_stopped": _TRIPS,
    "tests/store/test_app_lists.py::test_a_page_of_many_queues_and_workers_takes_few_round_trips": _TRIPS,
    "tests/store/test_app_lists.py::test_a_queue_is_paused_resumed_and_purged": _TRIPS,
    "tests/store/test_bulk_operations.py::test_a_count_looks_at_a_bounded_number_of_jobs": _OPERATION,
    "tests/store/test_bulk_operations.py::test_an_operation_is_a_job_that_is_listed_apart": _OPERATION,
    "tests/store/test_bulk_operations.py::test_coroutines_do_so_too": _OPERATION,
    "tests/store/test_bulk_operations.py::test_own_jobs_come_in_pages": _OPERATION,
    "tests/store/test_connection_pool.py::test_hundreds_of_coroutines_that_enqueue_share_the_connections": _TRIPS,
    "tests/store/test_connection_pool.py::test_hundreds_of_reads_at_once_travel_together": _TRIPS,
    "tests/store/test_credentials.py::test_a_server_that_refuses_a_label_is_used_all_the_same": _TRIPS,
    "tests/store/test_credentials.py::test_no_connection_is_used_after_the_end_that_its_credentials_name": _TRIPS,
    "tests/store/test_durability.py::test_a_chunk_is_as_safe_as_the_safest_of_its_jobs": _TRIPS,
    "tests/store/test_durability.py::test_a_chunk_that_a_failover_loses_is_stored_again_once": _CHUNKS,
    "tests/store/test_durability.py::test_jobs_whose_chunk_is_not_confirmed_are_asked_for_by_id": _CHUNKS,
    "tests/store/test_durability.py::test_one_round_trip_confirms_a_job": _TRIPS,
    "tests/store/test_durability.py::test_the_confirmation_of_a_chunk_travels_with_the_next": _TRIPS,
    "tests/store/test_enqueue_middleware.py::test_a_middleware_that_changes_nothing_sends_the_same": _STUB,
    "tests/store/test_enqueue_middleware.py::test_an_enqueue_that_uses_none_of_it_sends_nothing_for_it": _STUB,
    "tests/store/test_envelopes.py::test_a_chunk_takes_one_round_trip": _TRIPS,
    "tests/store/test_envelopes.py::test_a_sender_that_gave_up_may_send_everything_again": _ALL_OR_NONE,
    "tests/store/test_following_jobs.py::test_a_bulk_of_several_kinds_stores_them": _PLACES,
    "tests/store/test_following_jobs.py::test_a_job_that_is_not_stored_is_named_and_nothing_is_stored": _PLACES,
    "tests/store/test_following_jobs.py::test_a_limited_job_goes_to_its_lane_when_its_time_has_come": _PLACES,
    "tests/store/test_following_jobs.py::test_handles_ids_and_lists_name_the_jobs_that_a_job_follows": _PLACES,
    "tests/store/test_records.py::test_what_cannot_be_read_raises_where_it_is_asked_for_and_breaks_no_list": _HOME,
    "tests/store/test_records.py::test_where_the_task_is_not_known_values_are_plain": _HOME,
    "tests/store/test_sentinel.py::test_a_sentinel_and_its_master_are_reached_over_tls": _HOME,
    "tests/store/test_unique_jobs.py::test_a_clash_that_raises_names_the_job_and_stores_nothing": _ALL_OR_NONE,
    "tests/store/test_unique_jobs.py::test_a_schedule_of_a_unique_task_has_its_name": _PLACES,
    "tests/store/test_unreachable.py::test_a_caller_hears_what_it_waits_for": _EACH,
    "tests/store/test_unreachable.py::test_a_command_says_what_it_waits_for": _EACH,
    "tests/store/test_unreachable.py::test_the_command_line_says_the_same": _EACH,
    "tests/store/test_unreachable.py::test_the_library_says_what_is_wrong_in_one_line[a replica]": _PARTIAL,
    "tests/store/test_waiting.py::test_a_child_does_not_wait_for_a_look_of_its_parent": _INNER,
    "tests/store/test_waiting.py::test_a_listener_leaves_when_nothing_is_waited_for": _TRIPS,
    "tests/store/test_waiting.py::test_a_server_without_resp3_gets_a_second_connection": _TRIPS,
    "tests/store/test_waiting.py::test_hundreds_of_waiters_share_one_connection": _TRIPS,
    "tests/store/test_waiting.py::test_tasks_that_wait_use_two_connections": _TRIPS,
    "tests/store/test_waiting.py::test_threads_that_wait_use_two_connections": _TRIPS,
    "tests/store/test_waiting_closed.py::test_a_question_that_a_close_finds_on_its_way_is_answered": _INNER,
    "tests/store/test_workflows.py::test_a_page_of_a_hundred_is_one_round_trip": _TRIPS,
    "tests/system/test_bulk_killed.py::test_a_worker_that_is_killed_leaves_the_rest_of_an_operation": _OPERATION,
    "tests/system/test_cli_worker.py::test_json_lines_have_fields_and_a_burst_tells_how_many_jobs_it_ran": _EACH,
    "tests/system/test_cluster.py::test_a_claim_does_nothing_while_some_keys_are_on_another_node": _HOME,
    "tests/system/test_cluster_faults.py::test_a_killed_primary_charges_nobody[1]": _OWN,
    "tests/system/test_cluster_faults.py::test_nodes_that_all_got_new_addresses_are_found_by_the_seeds": _PARTIAL,
    "tests/system/test_cluster_faults.py::test_what_a_failover_loses_is_counted_and_nothing_confirmed_is_lost[memory-1]": _OWN,
    "tests/system/test_cluster_urls.py::test_a_cluster_without_full_coverage_names_what_is_missing": _HOME,
    "tests/system/test_cluster_urls.py::test_another_server_at_the_address_of_a_dead_node_is_given_nothing": _HOME,
    "tests/system/test_cluster_urls.py::test_seeds_that_are_gone_are_said_to_be": _EACH,
    "tests/system/test_doctor_beside_workers.py::test_a_failover_in_the_middle_of_a_repair": _HOME,
    "tests/system/test_doctor_beside_workers.py::test_a_thousand_faults_are_found_under_load": _HOME,
    "tests/system/test_flushed.py::test_a_worker_marks_the_layout_of_a_store_that_lost_everything": _LOST,
    "tests/system/test_flushed.py::test_jobs_that_a_server_forgot_wholly_are_told_in_one_line": _EACH,
    "tests/system/test_following.py::test_kills_leave_none_behind_and_none_before_its_time": _PLACES,
    "tests/system/test_hooks.py::test_a_hook_that_enqueues_a_failing_job_makes_one_call_a_second": _HOOKS,
    "tests/system/test_kill_trial.py::test_limits_and_ticks_hold_through_ten_seconds_of_kills": _PLACES,
    "tests/system/test_kills_points.py::test_a_kill_around_a_request[valkey-9-claiming-claim-reply": _TAP,
    "tests/system/test_kills_points.py::test_one_that_dies_before_it_took_over_leaves_all_to_the_next": _TAP,
    "tests/system/test_limits_operated.py::test_a_pause_holds_a_value_or_all_until_it_ends": _KNOWN,
    "tests/system/test_limits_operated.py::test_changed_numbers_start_jobs_that_wait_in_an_idle_worker": _KNOWN,
    "tests/system/test_limits_operated.py::test_the_oldest_job_makes_room_for_a_new_one": _KNOWN,
    "tests/system/test_migrate.py::": _ONE,
    "tests/system/test_move.py::": _OWN,
    "tests/system/test_restored.py::test_no_worker_claims_from_an_old_copy_before_the_word[run]": _HOME,
    "tests/system/test_rollback.py::test_a_claim_that_its_worker_does_not_know_goes_back": _HOME,
    "tests/system/test_server_answers.py::test_a_server_that_loads_for_two_leases_charges_no_job": _PARTIAL,
    "tests/system/test_server_answers.py::test_keys_that_were_evicted_are_counted_by_worker_and_doctor": _EVICTED,
    "tests/system/test_server_answers.py::test_one_tenant_that_fills_the_memory_leaves_others_their_backlog": _LIMITS,
    "tests/system/test_shards.py::test_a_cluster_goes_on_when_a_slot_moves_and_a_primary_dies": _OWN,
    "tests/system/test_web.py::test_a_hundred_readers_of_changes_share_one_connection": _HOME,
    "tests/system/test_worker_path.py::test_jobs_of_a_paused_queue_wake_no_worker_and_each_worker_learns": _TRIPS,
}
