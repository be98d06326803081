// A producer and a blocking consumer of penstock queues on one Redis server, written from
// protocol/core.md. The scripts are those of `penstock scripts --out DIR`.
import { randomInt } from 'node:crypto'
import { connect, Connection, isFinal, randomHex } from './connection.mjs'
import * as formats from './formats.mjs'

const TICK = 4000
const DRAINED = -2 // as `next` of a reserve
const NO_QUEUE = -5
const LANE = 5 // the code of the fast lane, which delivers no job again
const OUTCOMES = { 1: 'done', 2: 'ended', 3: 'dead', 0: 'gone', '-1': 'stale', '-2': 'refused' }

/** Return the elements of a reply after the nonce. Its code must be 1 or LANE. */
function done([code, , ...values]) {
  if (code !== 1 && code !== LANE) throw new Error(`code ${code} ${values.map(String)}, see "Calling a script"`)
  return values
}

export class Penstock extends Connection {
  owner = `node:${process.pid}`
  #node

  /** Read the id of the server, or give it one. */
  async #readNode() {
    const hash = `${this.prefix}:node`
    while (!this.#node) {
      this.#node = await this.run((redis) => redis.hget(hash, 'id'))
      if (!this.#node) await this.run((redis) => redis.hsetnx(hash, 'id', randomHex(20)))
    }
  }

  /** Add 1 to 1000 jobs, all or none, and return their ids. Times are in ms. */
  async enqueue(queue, bodies, { delay = 0, bound = '', codec = 'json', ...options } = {}) {
    const records = bodies.map((value) => {
      const body = codec === 'json' ? JSON.stringify(value) : value
      return formats.encodeRecord({ body, codec, stable: randomHex(10), ...options })
    })
    const add = (epoch) => this.script('enqueue', queue, [epoch, delay, bound, 0, '', ...records])
    await this.#readNode()
    let reply = await add('')
    if (reply[0] === NO_QUEUE) reply = await this.#create(queue, add)
    const [first, , epoch] = done(reply).map(String)
    const [ms, seq] = first.split('-').map(Number)
    const place = { node: this.#node, queue, epoch, ...options }
    return bodies.map((_, i) => formats.encodeId({ ...place, number: `${ms}-${seq + i}` }))
  }

  /** Register the queue, then create it with its first jobs. */
  async #create(queue, add) {
    const epoch = formats.hex(randomInt(1, 2 ** 32), 8)
    const entry = [`${this.prefix}:queues`, formats.crc32(queue) + epoch]
    const register = (redis) => redis.hset(...entry, queue)
    await this.run(register)
    const reply = await add(epoch)
    const isCreated = reply[0] === 1 && String(reply[4]) === epoch
    // After the creation once more: the entry may have been removed.
    await this.run(isCreated ? register : (redis) => redis.hdel(...entry))
    return reply
  }

  /**
   * Take up to n jobs under a lease; wait at most `block` ms for the first one.
   * null: the queue is closed and drained.
   */
  async reserve(queue, n = 1, { block = 0 } = {}) {
    await this.#readNode()
    const until = performance.now() + block
    for (let idle = 0; ; idle = 1) {
      const { jobs, next } = await this.#reserve(queue, n, idle)
      if (jobs.length) return jobs
      if (next === DRAINED) return null
      const left = until - performance.now()
      if (left <= 0) break
      await this.#waitForToken(queue, Math.min(left, TICK, next < 0 ? TICK : next))
    }
    if (block) await this.#reserve(queue, 0, 1) // hand on an event that it was told of
    return []
  }

  /** Wait at most so many ms for a token. Failed connections may lose it: look for jobs anyway. */
  #waitForToken(queue, ms) {
    const redis = connect(this.url, ms + 1)
    return redis
      .blpop(formats.key(this.prefix, queue, 'wake'), (2 * TICK) / 1000)
      .catch((error) => isFinal(error) && Promise.reject(error))
      .finally(() => redis.disconnect())
  }

  async #reserve(queue, n, idle) {
    const tag = randomInt(4096)
    const sent = performance.now()
    const reply = await this.script('reserve', queue, [n, tag, this.owner, idle, ''])
    const [next, epoch, queueLease, , ...rest] = done(reply)
    const place = { node: this.#node, queue, epoch: String(epoch) }
    const jobs = []
    while (rest.length) {
      const number = String(rest.shift())
      const counters = reply[0] === LANE ? '' : String(rest.shift())
      const record = formats.decodeRecord(rest.shift())
      const id = formats.encodeId({ ...record, ...place, number })
      const { attempt } = formats.decodeCounters(counters)
      const receipt = formats.receipt(counters, tag)
      const leaseEnds = sent + formats.leaseOf(record, queueLease)
      jobs.push({ ...record, queue, id, attempt, receipt, leaseEnds })
    }
    return { jobs, next }
  }

  // Each of these ends the delivery of a job, and returns one of OUTCOMES.
  ack = (job) => this.#settle('ack', job, '')
  nack = (job, error = '', trace = '') => this.#settle('nack', job, -1, randomInt(2 ** 31 - 2), error, trace)
  release = (job, delay = 0) => this.#settle('release', job, delay)
  bury = (job, reason = '', trace = '') => this.#settle('bury', job, reason, trace)

  async #settle(script, job, ...args) {
    const [count, code = count] = await this.#report(script, job, args)
    return OUTCOMES[code] // the reply is short, and the count 1, if the job is done
  }

  /** Renew the lease from now on, and return one of OUTCOMES. `lease` 0 is the job's own. */
  async extend(job, lease = 0) {
    const sent = performance.now()
    const [now, until] = await this.#report('extend', job, [lease, 1])
    if (!(until in OUTCOMES)) job.leaseEnds = sent + until - now
    return OUTCOMES[until] ?? 'done'
  }

  async #report(script, job, args) {
    const { number, epoch } = formats.decodeId(job.id)
    return done(await this.script(script, job.queue, [epoch, job.receipt, ...args, number]))
  }
}
