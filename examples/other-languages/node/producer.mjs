// Add jobs, and print their ids: node producer.mjs QUEUE BODIES [OPTIONS]
// BODIES is a list and OPTIONS an object, in JSON.
import { Penstock } from './penstock.mjs'

const [queue, bodies, options = '{}'] = process.argv.slice(2)
const { PENSTOCK_URL = 'redis://127.0.0.1:6379/0', PENSTOCK_SCRIPTS = 'scripts' } = process.env
const ps = new Penstock(PENSTOCK_URL, PENSTOCK_SCRIPTS)
for (const id of await ps.enqueue(queue, JSON.parse(bodies), JSON.parse(options))) console.log(id)
ps.close()
