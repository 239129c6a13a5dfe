"""Which of several members gets the next call or job: strategies, the load index and the hash ring. Pure."""
