// Add a job, and print its id: node producer.mjs QUEUE BODY [OPTIONS], both JSON
import { Penstock } from './penstock.mjs'

const [queue, body, options = '{}'] = process.argv.slice(2)
const { PENSTOCK_URL: url = 'redis://127.0.0.1:6379/0', PENSTOCK_SCRIPTS: scripts = 'scripts' } = process.env
const ps = new Penstock(url, { scripts })
console.log(await ps.enqueue(queue, JSON.parse(body), JSON.parse(options)))
ps.close()
