// Take jobs until none comes for PATIENCE ms, print each, and settle it:
// node consumer.mjs QUEUE [PATIENCE [ack|nack|release|bury]]
import { Penstock } from './penstock.mjs'

const [queue, patience = '5000', outcome = 'ack'] = process.argv.slice(2)
const { PENSTOCK_URL: url = 'redis://127.0.0.1:6379/0', PENSTOCK_SCRIPTS: scripts = 'scripts' } = process.env
const ps = new Penstock(url, { scripts })
for (;;) {
  const jobs = await ps.reserve(queue, 10, { block: Number(patience) })
  if (!jobs?.length) break
  for (const job of jobs) {
    const { id, attempt, headers, codec, receipt } = job
    const body = codec === 'json' ? JSON.parse(job.body) : job.body.toString('base64')
    const extended = await ps.extend(job)
    console.log(JSON.stringify({ id, attempt, headers, codec, receipt, body, extended, outcome: await ps[outcome](job) }))
  }
}
ps.close()
