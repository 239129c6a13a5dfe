// Improves pages that are whole without it: fresh figures, times, keys, dialogs. Keeps no state but the page.
const EVERY = 2000, SLOW = 5;
let skew = Number(document.body.dataset.now || 0) ? Number(document.body.dataset.now) - Date.now() : 0;
let round = 0, waits = EVERY;

// -- times --
function distance(at) {
  const away = (Date.now() + skew - at) / 1000, size = Math.abs(away);
  if (away > -3 && away < 1) return "now";
  let words = `${Math.round(size / 86400).toLocaleString("en")} d`;
  for (const [unit, length, most] of [["s", 1, 90], ["min", 60, 90], ["h", 3600, 36]]) {
    if (size < length * most) { words = `${Math.round(size / length)} ${unit}`; break; }
  }
  return away > 0 ? `${words} ago` : `in ${words}`;
}

function refreshTimes() {
  for (const time of document.querySelectorAll("time[data-at]")) {
    const at = Number(time.dataset.at), words = distance(at);
    if (time.textContent !== words) time.textContent = words;
    if (!time.dataset.local) {
      time.dataset.local = "1";
      time.title += `\n${new Date(at).toLocaleString()} here`;
    }
  }
  for (const time of document.querySelectorAll("time[data-here]")) {
    time.textContent = new Date(Number(time.dataset.here)).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
    delete time.dataset.here;
  }
}

// -- live --
function inUse(element) {
  const chosen = document.getSelection();
  return element.contains(document.activeElement) && document.activeElement !== document.body
    || (chosen && !chosen.isCollapsed && element.contains(chosen.anchorNode))
    || element.querySelector("details[open]") !== null;
}

// Parts of a newer dashboard do not fit this page's script and style: the page is loaded anew, unless a person types.
function isOutdated(fresh) {
  if (fresh.body.dataset.version === document.body.dataset.version) return false;
  const rested = Date.now() - Number(sessionStorage.getItem("reloaded") || 0) > 60000;
  if (rested && !document.querySelector("dialog[open]") && !document.activeElement?.matches("input, select, textarea")) {
    sessionStorage.setItem("reloaded", Date.now());
    location.reload();
  }
  return true;
}

function replaceFragments(fresh) {
  if (isOutdated(fresh)) return;
  for (const old of document.querySelectorAll("[data-live]")) {
    if (!old.id || inUse(old) || old.matches(":hover.plot")) continue;
    if (old.dataset.live === "slow" && round % SLOW) continue;
    const next = fresh.getElementById(old.id);
    if (next && next.innerHTML !== old.dataset.seen) {
      const seen = next.innerHTML, scrolled = [...old.querySelectorAll(".graph-frame")].map((f) => [f.scrollLeft, f.scrollTop]);
      old.replaceChildren(...document.importNode(next, true).childNodes);
      old.className = next.className;
      old.dataset.seen = seen;
      old.querySelectorAll(".graph-frame").forEach((f, n) => { if (scrolled[n]) [f.scrollLeft, f.scrollTop] = scrolled[n]; else open(f); });
    }
  }
  tellNewer(fresh);
  const now = Number(fresh.body.dataset.now || 0);
  if (now) skew = now - Date.now();
  showCopies();
  refreshTimes();
}

// A list stands still: new rows above it are counted, and shown when a person asks.
function tellNewer(fresh) {
  const told = document.getElementById("newer"), list = document.querySelector("[data-rows]"), now = fresh.querySelector("[data-rows]");
  if (!told || !list || !now) return;
  const ids = (where) => [...where.querySelectorAll("tr[data-id]")].map((row) => row.dataset.id);
  // Of several queues, new rows are among the others; unknown ones behind the last known row have moved up.
  const known = new Set(ids(list)), found = ids(now), last = found.findLastIndex((id) => known.has(id));
  const count = last < 0 ? found.length : found.slice(0, last).filter((id) => !known.has(id)).length;
  const words = count ? `${count}${last < 0 && known.size ? " or more" : ""} newer: ` : "";
  // Screen readers tell each change: one in ten seconds at most.
  if (told.dataset.words === words || Date.now() < Number(told.dataset.next || 0)) return;
  Object.assign(told.dataset, { words, next: Date.now() + 10000 });
  told.hidden = !words;
  const link = document.createElement("a");
  Object.assign(link, { href: location.href, textContent: "show" });
  told.replaceChildren(words, link);
}

async function refresh() {
  // The answer to a form has no address to ask again.
  const retry = document.querySelector("[data-retry]");
  if (document.hidden || "still" in document.body.dataset || !(retry || document.querySelector("[data-live]"))) return;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html", "x-headrace-poll": "1" } });
    if (answer.redirected && !retry) return;
    if (answer.ok) {
      if (retry) { location.reload(); return; }
      replaceFragments(new DOMParser().parseFromString(await answer.text(), "text/html"));
      document.body.classList.remove("away");
      waits = EVERY;
      round += 1;
      return;
    }
  } catch { /* the next one may be answered */ }
  document.body.classList.add("away");
  const read = document.getElementById("read-at");
  if (read && !read.textContent.endsWith("trying again")) read.textContent += ", trying again";
  waits = Math.min(waits * 2, 30000);
}

// The next one waits for this one's answer: a slow server is not asked twice at once.
async function poll() {
  await refresh();
  setTimeout(poll, waits);
}

// -- plots --
function tell(drawing, place) {
  const hits = [...drawing.querySelectorAll(".hit rect")];
  if (!hits.length) return;
  const at = Math.max(0, Math.min(place, hits.length - 1));
  hits.forEach((hit, n) => hit.classList.toggle("at", n === at));
  drawing.dataset.place = at;
  drawing.closest(".plot").querySelector(".value").textContent = hits[at].textContent;
}

document.addEventListener("pointermove", (event) => {
  const hit = event.target.closest?.(".hit rect");
  if (hit) tell(hit.closest(".drawing"), [...hit.parentNode.children].indexOf(hit));
});

document.addEventListener("pointerout", (event) => {
  const drawing = event.target.closest?.(".drawing");
  if (drawing && !drawing.contains(event.relatedTarget)) {
    drawing.querySelectorAll(".hit .at").forEach((hit) => hit.classList.remove("at"));
    drawing.closest(".plot").querySelector(".value").textContent = "";
  }
});

// -- keys --
let goes = false;

function step(by) {
  const rows = [...document.querySelectorAll("main tbody tr")].filter((row) => row.querySelector("a"));
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.classList.contains("at"));
  rows[at]?.classList.remove("at");
  const row = rows[Math.max(0, Math.min(at + by, rows.length - 1))];
  row.classList.add("at");
  row.querySelector("a").focus();
  row.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  const drawing = event.target.closest?.(".drawing");
  if (drawing && ["ArrowLeft", "ArrowRight"].includes(event.key)) {
    tell(drawing, Number(drawing.dataset.place ?? -1) + (event.key === "ArrowRight" ? 1 : -1));
    event.preventDefault();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea, dialog")) return;
  if (goes) {
    goes = false;
    document.querySelector(`.side a[data-key="${CSS.escape(event.key)}"]`)?.click();
    return;
  }
  if (event.key === "/") { document.getElementById("q")?.focus(); event.preventDefault(); }
  else if (event.key === "g") goes = true;
  else if (event.key === "j") step(1);
  else if (event.key === "k") step(-1);
  else if (event.key === "x") document.querySelector("tr.at input[name=id]")?.click();
  else if (event.key === "?") document.getElementById("keys")?.showModal();
});

// -- verbs --
// What destroys nothing comes first; what does, last.
function confirmed(words, label, main) {
  const dialog = document.createElement("dialog"), no = ["no", "Leave it", ""], yes = ["yes", label, main ? "main" : "danger"];
  const text = document.createElement("p"), form = document.createElement("form");
  text.textContent = words;
  form.method = "dialog";
  for (const [value, name, kind] of main ? [yes, no] : [no, yes]) {
    const button = document.createElement("button");
    Object.assign(button, { value, textContent: name, className: kind });
    form.append(button);
  }
  dialog.append(text, form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => { dialog.remove(); done(dialog.returnValue === "yes"); }));
}

document.addEventListener("submit", async (event) => {
  const form = event.target, button = event.submitter, count = ticked(form);
  const words = (button?.dataset.ask || form.dataset.ask || "").replace("{n}", `${count} ${form.dataset.thing || "job"}${count === 1 ? "" : "s"}`);
  if (!words || form.dataset.asked) return;
  event.preventDefault();
  if (!await confirmed(words, button?.textContent || "Do it", button?.matches(".main"))) return;
  const sure = form.querySelector("input[name=sure]");
  form.dataset.asked = "1";
  form.querySelector("input[name=ask]")?.remove();
  if (sure) sure.disabled = false;
  form.requestSubmit(button);
  // A page that comes back out of the browser's memory asks again.
  delete form.dataset.asked;
  if (sure) sure.disabled = true;
});

// -- ticked rows --
function ticked(form) { return form.querySelectorAll("input[name=id]:checked").length; }

function tellTicked() {
  const form = document.querySelector("form.ticked"), all = form?.querySelector("[data-tick-all]");
  if (!form) return;
  const count = ticked(form), boxes = form.querySelectorAll("input[name=id]").length;
  form.querySelectorAll("[data-ticked]").forEach((text) => { text.textContent = `${count} ticked`; });
  all.checked = count > 0 && count === boxes;
  all.indeterminate = count > 0 && count < boxes;
  all.parentNode.hidden = false;
}

// With shift, all rows from the last one ticked to this one become as this one.
let from = null;
document.addEventListener("click", (event) => {
  const box = event.target, boxes = [...(box.form?.querySelectorAll("input[name=id]") || [])];
  if (box.matches("[data-tick-all]")) boxes.forEach((one) => { one.checked = box.checked; });
  else if (!boxes.includes(box)) return;
  const ends = [boxes.indexOf(from), boxes.indexOf(box)].sort((a, b) => a - b);
  if (event.shiftKey && ends[0] >= 0) for (const one of boxes.slice(...ends)) one.checked = box.checked;
  from = box;
  tellTicked();
});
addEventListener("pageshow", tellTicked);

document.addEventListener("click", async (event) => {
  const copy = event.target.closest?.("[data-copy]");
  if (copy) {
    await navigator.clipboard?.writeText(copy.dataset.copy);
    copy.textContent = "Copied";
  }
});

function showCopies() {
  if (navigator.clipboard) document.querySelectorAll("[data-copy][hidden]").forEach((button) => { button.hidden = false; });
}

// Where no cookie tells, only the browser knows the theme; the button says the other one.
const toggle = document.querySelector("[data-theme-toggle]");
if (toggle && !document.documentElement.dataset.theme) {
  toggle.value = matchMedia("(prefers-color-scheme: dark)").matches ? "light" : "dark";
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
// A graph opens at what broke, or at its first box; a traceback at its end, which names the error.
function open(frame) {
  const box = (frame.querySelector(".node.s-failed") || frame.querySelector(".node") || frame).getBoundingClientRect(), at = frame.getBoundingClientRect();
  frame.scrollTo(box.right - at.x - at.width / 2, box.bottom - at.y - at.height / 2);
}
document.querySelectorAll(".graph-frame").forEach(open);
for (const trace of document.querySelectorAll(".fault .trace pre")) trace.scrollTop = trace.scrollHeight;
refreshTimes();
showCopies();
setInterval(refreshTimes, 1000);
setTimeout(poll, document.querySelector("[data-soon]") ? 50 : EVERY);
