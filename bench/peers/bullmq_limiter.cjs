// BullMQ's limiter at one rate: node bullmq_limiter.cjs SOCKET RATE SECONDS. Prints the microseconds of all starts as JSON.
// Four workers in one process, ten jobs at once each, share the queue's limit, as BullMQ's documentation shows it.
const { Queue, Worker } = require('bullmq');

const [socket, rate, seconds] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const connection = { path: socket, maxRetriesPerRequest: null };
const starts = [];

async function main() {
  const queue = new Queue('bench', { connection });
  const count = Math.round(rate * (seconds + 5));
  for (let first = 0; first < count; first += 1000) {
    const chunk = Array.from({ length: Math.min(1000, count - first) }, () => ({ name: 'noop', data: {}, opts: { removeOnComplete: true } }));
    await queue.addBulk(chunk);
  }
  const options = { connection, concurrency: 10, limiter: { max: rate, duration: 1000 } };
  const note = async () => { starts.push(Math.round((performance.timeOrigin + performance.now()) * 1000)); };
  for (let n = 0; n < 4; n += 1) new Worker('bench', note, options);
  await new Promise((resolve) => setTimeout(resolve, (seconds + 2) * 1000));
  const first = starts[0] + 1000000;
  process.stdout.write(`${JSON.stringify(starts.filter((one) => one >= first && one < first + seconds * 1000000))}\n`, () => process.exit(0));
}

main();
