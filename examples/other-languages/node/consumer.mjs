// Take jobs until none comes for PATIENCE ms, print each, and settle it:
// node consumer.mjs QUEUE [PATIENCE [ack|nack|release|bury]]
import { Penstock } from './penstock.mjs'

const [queue, patience = '5000', settle = 'ack'] = process.argv.slice(2)
const { PENSTOCK_URL = 'redis://127.0.0.1:6379/0', PENSTOCK_SCRIPTS = 'scripts' } = process.env
const ps = new Penstock(PENSTOCK_URL, PENSTOCK_SCRIPTS)
for (;;) {
  const jobs = await ps.reserve(queue, 10, { block: Number(patience) })
  if (!jobs?.length) break
  for (const job of jobs) {
    const { id, attempt, headers, codec, receipt } = job
    const body = codec === 'json' ? JSON.parse(job.body) : job.body.toString('base64')
    const extended = await ps.extend(job)
    const shown = { id, attempt, headers, codec, receipt, body, extended }
    console.log(JSON.stringify({ ...shown, outcome: await ps[settle](job) }))
  }
}
ps.close()
