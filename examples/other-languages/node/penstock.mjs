// A producer and a blocking consumer of penstock queues on one Redis server, written from protocol/core.md.
// The scripts are those of `penstock scripts --out DIR`.
import { randomBytes, randomInt } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { Connection, isFinal } from './connection.mjs'
import { crc32, decodeCounters, decodeId, decodeRecord, encodeId, encodeRecord, key, receipt } from './formats.mjs'

const TICK = 4000
const DRAINED = -2 // as `next` of a reserve
const NO_QUEUE = -5
const OUTCOMES = { 1: 'done', 2: 'ended before', 3: 'dead', 0: 'gone', '-1': 'stale', '-2': 'refused', '-11': 'too late' }

/** Return the elements of a reply after the code, which must be 1. */
function done([code, ...values]) {
  if (code !== 1) throw new Error(`code ${code} ${values.map(String)}, see "Calling a script"`)
  return values
}

export class Penstock {
  #calls
  #blocking
  #node
  #stable = { start: randomBytes(8).toString('hex'), count: 0 }

  constructor(url, { scripts, prefix = 'penstock', owner = `node:${process.pid}`, retryFor = 5000 }) {
    const index = JSON.parse(readFileSync(join(scripts, 'index.json')))
    const loaded = index.scripts.map((one) => [one.name, { ...one, source: readFileSync(join(scripts, one.file)) }])
    Object.assign(this, { prefix, owner })
    this.#calls = new Connection(url, prefix, retryFor, Object.fromEntries(loaded))
    this.#blocking = new Connection(url, prefix, retryFor)
  }

  close() {
    this.#calls.close()
    this.#blocking.close()
  }

  /** Read the id of the server, or give it one. */
  async #readNode() {
    const read = async () => (await this.#calls.command('HGET', `${this.prefix}:node`, 'id'))?.toString()
    this.#node ??= await read()
    if (this.#node) return
    await this.#calls.command('HSETNX', `${this.prefix}:node`, 'id', randomBytes(20).toString('hex'))
    this.#node = await read()
  }

  /** Add 1 to 1000 jobs, all or none, and return their ids. Times are in ms. A Buffer is sent as it is, all else as JSON. */
  async enqueue(queue, bodies, { delay = 0, bound = '', codec, ...options } = {}) {
    const records = bodies.map((body) => {
      const content = Buffer.isBuffer(body) ? { body, codec } : { body: JSON.stringify(body), codec: 'json' }
      return encodeRecord({ ...content, ...options, stable: `${this.#stable.start}-${(this.#stable.count += 1)}` })
    })
    const add = (epoch) => this.#calls.script('enqueue', queue, [epoch, delay, bound, 0, '', ...records])
    await this.#readNode()
    let reply = await add('')
    if (reply[0] === NO_QUEUE) reply = await this.#create(queue, add)
    const [first, , epoch] = done(reply)
    const [ms, seq] = String(first).split('-').map(Number)
    const job = { node: this.#node, queue, epoch: String(epoch), ...options }
    return bodies.map((_, i) => encodeId({ ...job, number: `${ms}-${seq + i}` }))
  }

  /** Register the queue, then create it with its first jobs. */
  async #create(queue, add) {
    const registry = (word, epoch, ...name) => this.#calls.command(word, `${this.prefix}:queues`, crc32(queue) + epoch, ...name)
    const proposed = randomInt(1, 2 ** 32).toString(16).padStart(8, '0')
    await registry('HSET', proposed, queue)
    const reply = await add(proposed)
    const [code, , , epoch, created] = reply
    if (created) await registry('HSET', epoch, queue)
    if (code !== 1 || String(epoch) !== proposed) await registry('HDEL', proposed)
    return reply
  }

  /** Take up to n jobs under a lease; wait at most `block` ms for the first one. null: the queue is closed and drained. */
  async reserve(queue, n = 1, { block = 0 } = {}) {
    await this.#readNode()
    const until = performance.now() + block
    let { jobs, next } = await this.#reserve(queue, n, 0)
    for (let left = block; !jobs.length && next !== DRAINED && left > 0; left = until - performance.now()) {
      await this.#waitForToken(queue, Math.min(TICK, left, next < 0 ? TICK : next))
      ;({ jobs, next } = await this.#reserve(queue, n, 1))
    }
    if (block > 0 && !jobs.length && next >= 0 && next <= TICK) await this.#reserve(queue, 0, 1) // hand the event on
    return jobs.length || next !== DRAINED ? jobs : null
  }

  /** Wait for a token for at most so many ms. A failed connection also ends the wait, as it may have lost a token. */
  #waitForToken(queue, ms) {
    return this.#blocking.run(async (redis) => {
      const id = await redis.client('ID')
      const unblock = () => this.#calls.command('CLIENT', 'UNBLOCK', id).catch(() => {})
      const timer = setInterval(unblock, Math.max(10, ms)) // the first one may come before the BLPOP
      try {
        await redis.callBuffer('BLPOP', key(this.prefix, queue, 'wake'), 2 * TICK / 1000)
      } catch (error) {
        if (isFinal(error)) throw error
        this.#blocking.close()
      } finally {
        clearInterval(timer)
      }
    })
  }

  async #reserve(queue, n, idle) {
    const tag = randomInt(4096)
    const sent = performance.now()
    const reply = await this.#calls.script('reserve', queue, [n, tag, this.owner, idle, ''])
    const [next, epoch, queueLease, , ...rest] = done(reply)
    const jobs = []
    for (let i = 0; i < rest.length; i += 3) {
      const [number, counters, record] = [String(rest[i]), String(rest[i + 1]), decodeRecord(rest[i + 2])]
      const { ttl, lease } = record
      const usual = ttl === null ? queueLease : Math.min(queueLease, Math.max(1000, Math.floor(ttl / 10)))
      const { nacks, crashes } = decodeCounters(counters)
      jobs.push({
        ...record,
        queue,
        id: encodeId({ node: this.#node, number, queue, epoch: String(epoch), ttl, lease }),
        receipt: receipt(counters, tag),
        attempt: 1 + nacks + crashes,
        leaseEnds: sent + (lease ?? usual),
      })
    }
    return { jobs, next }
  }

  ack = (job) => this.#settle('ack', job, [''])
  nack = (job, error = '', delay = -1) => this.#settle('nack', job, [delay, randomInt(2147483646), error])
  release = (job, delay = 0) => this.#settle('release', job, [delay])
  bury = (job, reason = '') => this.#settle('bury', job, [reason])

  /** End a delivery, and return one of OUTCOMES. */
  async #settle(script, job, args) {
    const { number, epoch } = decodeId(job.id)
    const reply = await this.#calls.script(script, job.queue, [epoch, job.receipt, ...args, number])
    const [count, code = count] = done(reply) // the code of the job follows unless it is done
    return OUTCOMES[code]
  }

  /** Renew the lease from now on, and return one of OUTCOMES. `lease` 0 is the job's own. */
  async extend(job, lease = 0) {
    const { number, epoch } = decodeId(job.id)
    const sent = performance.now()
    const [now, until] = done(await this.#calls.script('extend', job.queue, [epoch, job.receipt, lease, 1, number]))
    if (until < 1000) return OUTCOMES[until]
    job.leaseEnds = sent + until - now
    return 'done'
  }
}
