// A producer and a blocking consumer of penstock queues on one Redis server, written from protocol/core.md.
// The scripts are those of `penstock scripts --out DIR`.
import { randomBytes, randomInt } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { crc32, decodeCounters, decodeId, decodeRecord, encodeId, encodeRecord, key, receipt } from './formats.mjs'

const TICK = 4000
const OVER = -2
const PASSING = /(^|[ -])(READONLY|MASTERDOWN|LOADING|NOREPLICAS|BUSY|MISCONF|TRYAGAIN|UNBLOCKED) /
const OUTCOMES = { 1: 'done', 2: 'ended before', 3: 'dead', 0: 'gone', '-1': 'stale', '-2': 'refused', '-11': 'too late' }
const OPTIONS = { // no retries by ioredis, and no commands of its own
  lazyConnect: true,
  retryStrategy: null,
  maxRetriesPerRequest: 0,
  autoResendUnfulfilledCommands: false,
  enableReadyCheck: false,
  disableClientInfo: true,
  protocol: 2,
  connectTimeout: 2000,
  socketTimeout: 70000, // above the 60 s of a BLPOP
}
const isRefusal = (error) => error.name === 'ReplyError'

/** A script answered with a code that is not 1. */
export class Refused extends Error {
  constructor(script, code, details) {
    super(`${script}: code ${code} ${details.map(String)}`)
    this.code = code
  }
}

/** One connection, its counter of calls and its producer id. One call at a time (Connections, Repeats). */
class Connection {
  #redis = null
  #last = Promise.resolve()
  #nonce = 0
  #producer = randomBytes(8).toString('hex')

  constructor(url, scripts, prefix, retryFor) {
    Object.assign(this, { url, scripts, prefix, retryFor })
  }

  async open() {
    if (this.#redis?.status === 'ready') return this.#redis
    this.close()
    this.#redis = new Redis(this.url, OPTIONS)
    this.#redis.on('error', () => {}) // the pending call fails, and tells
    await this.#redis.connect()
    return this.#redis
  }

  close() {
    this.#redis?.disconnect()
    this.#redis = null
  }

  /** Run one after the other, and repeat what was not answered. */
  serial(step) {
    const turn = this.#last.then(() => this.#repeated(step))
    this.#last = turn.catch(() => {})
    return turn
  }

  async #repeated(step) {
    const until = Date.now() + this.retryFor
    for (let pause = 5; ; pause = Math.min(pause * 2, 250)) {
      try {
        return await step(await this.open())
      } catch (error) {
        if (error instanceof Refused || (isRefusal(error) && !PASSING.test(error.message))) throw error
        this.close()
        if (Date.now() > until) throw error
        await sleep(Math.random() * pause)
      }
    }
  }

  command(...words) {
    return this.serial((redis) => redis.callBuffer(...words.map(String)))
  }

  /** Call a script; the elements of the reply after the nonce, if its code is 1. */
  async script(name, queue, args) {
    const { sha1, keys, source } = this.scripts[name]
    const nonce = String((this.#nonce += 1))
    const kinds = keys.map((kind) => key(this.prefix, queue, kind === 'producer' ? `producer:${this.#producer}` : kind))
    const words = [sha1, kinds.length, ...kinds, nonce, ...args.map((arg) => (Buffer.isBuffer(arg) ? arg : String(arg)))]
    let code, values
    try {
      ;[code, , ...values] = await this.serial(async (redis) => {
        const send = () => redis.callBuffer('EVALSHA', ...words)
        const answer = await send().catch(async (error) => {
          if (!error.message.includes('NOSCRIPT')) throw error
          await redis.callBuffer('SCRIPT', 'LOAD', source)
          return send()
        })
        const [, echoed] = answer
        if (String(echoed) !== nonce) throw new Error('replies are mixed up')
        return answer
      })
    } catch (error) { // the outcome may be unknown: a later call must not be taken for a repeat of this one
      this.#producer = randomBytes(8).toString('hex')
      throw error
    }
    if (code !== 1) throw new Refused(name, code, values)
    return values
  }
}

export class Penstock {
  #calls
  #waiting
  #node
  #stable = { start: randomBytes(8).readBigUInt64BE().toString(36).slice(0, 12), count: 0 }

  constructor(url, { scripts, prefix = 'penstock', owner = `node:${process.pid}`, retryFor = 5000 }) {
    const index = JSON.parse(readFileSync(join(scripts, 'index.json')))
    const loaded = index.scripts.map((one) => [one.name, { ...one, source: readFileSync(join(scripts, one.file)) }])
    this.prefix = prefix
    this.owner = owner
    this.#calls = new Connection(url, Object.fromEntries(loaded), prefix, retryFor)
    this.#waiting = new Connection(url, {}, prefix, retryFor)
  }

  close() {
    this.#calls.close()
    this.#waiting.close()
  }

  async node() {
    const at = [`${this.prefix}:node`, 'id']
    const read = async () => (await this.#calls.command('HGET', ...at))?.toString()
    this.#node ??= await read()
    if (this.#node === undefined) {
      await this.#calls.command('HSETNX', ...at, randomBytes(20).toString('hex'))
      this.#node = await read()
    }
    return this.#node
  }

  /** Add a job, and return its id. `lease`, `ttl` and `delay` are in ms. A Buffer is sent as it is, all else as JSON. */
  async enqueue(queue, body, options) {
    return (await this.enqueueMany(queue, [body], options))[0]
  }

  /** Add up to 1000 jobs, all or none, and return their ids. */
  async enqueueMany(queue, bodies, { delay = 0, bound = '', role = '', codec = '', ...options } = {}) {
    const records = bodies.map((body) => {
      const content = Buffer.isBuffer(body) ? { body, codec } : { body: JSON.stringify(body), codec: 'json' }
      return encodeRecord({ ...content, ...options, stable: `${this.#stable.start}-${(this.#stable.count += 1)}` })
    })
    const add = (create) => this.#calls.script('enqueue', queue, [create, delay, bound, 0, role, ...records])
    await this.node()
    const [first, , epoch] = await add('').catch((error) => {
      if (error.code !== -5) throw error
      return this.#create(queue, add)
    })
    const [ms, seq] = String(first).split('-').map(Number)
    const id = (_, i) => encodeId({ node: this.#node, number: `${ms}-${seq + i}`, queue, epoch: String(epoch), ...options })
    return bodies.map(id)
  }

  async #create(queue, add) {
    const registry = `${this.prefix}:queues`
    const epoch = randomBytes(4).toString('hex').replace(/^0{8}$/, '00000001')
    await this.#calls.command('HSET', registry, crc32(queue) + epoch, queue)
    let kept
    try {
      const reply = await add(epoch)
      const [, , found, created] = reply
      kept = String(found)
      if (created) await this.#calls.command('HSET', registry, crc32(queue) + kept, queue)
      return reply
    } finally {
      if (kept !== epoch) await this.#calls.command('HDEL', registry, crc32(queue) + epoch)
    }
  }

  /** Take up to n jobs under a lease; wait at most `block` ms for the first one. null: the queue is closed and drained. */
  async reserve(queue, n = 1, { block = 0 } = {}) {
    await this.node()
    const until = Date.now() + block
    let taken = await this.#reserve(queue, n, 0)
    if (block <= 0) return taken.jobs
    let pending = null
    while (!taken.jobs.length && taken.next !== OVER && Date.now() < until) {
      pending ??= await this.#listen(key(this.prefix, queue, 'wake'))
      const event = taken.next < 0 ? TICK : taken.next
      const timer = new AbortController()
      const pause = sleep(Math.max(0, Math.min(TICK, event, until - Date.now())), true, timer)
      const isTimer = await Promise.race([pending.ended.then(() => false), pause])
      timer.abort()
      if (!isTimer) pending = null
      taken = await this.#reserve(queue, n, 1) // it comes from a wait, whatever ended that
    }
    const hasToken = pending && (await this.#leave(pending))
    const isTold = !taken.jobs.length && taken.next >= 0 && taken.next <= TICK
    if (hasToken || isTold) await this.#reserve(queue, 0, 1) // hand it on
    return taken.jobs.length || taken.next !== OVER ? taken.jobs : null
  }

  /** Begin a BLPOP; `ended` tells whether it popped a token. A failed connection ends it, too. */
  #listen(wake) {
    return this.#waiting.serial(async (redis) => {
      const id = await redis.client('ID')
      const popped = redis.callBuffer('BLPOP', wake, 60)
      return { id, ended: popped.then((token) => token !== null, () => this.#waiting.close()) }
    })
  }

  async #leave({ id, ended }) {
    await this.#calls.command('CLIENT', 'UNBLOCK', id)
    return ended
  }

  async #reserve(queue, n, idle) {
    const tag = randomInt(4096)
    const sent = performance.now()
    const [next, epoch, queueLease, , ...rest] = await this.#calls.script('reserve', queue, [n, tag, this.owner, idle, ''])
    const jobs = []
    for (let i = 0; i < rest.length; i += 3) {
      const [number, counters, record] = [String(rest[i]), String(rest[i + 1]), decodeRecord(rest[i + 2])]
      const { ttl, lease } = record
      const usual = ttl === null ? queueLease : Math.min(queueLease, Math.max(1000, Math.floor(ttl / 10)))
      const { nacks, crashes } = decodeCounters(counters)
      const id = encodeId({ node: this.#node, number, queue, epoch: String(epoch), ttl, lease })
      const delivery = { receipt: receipt(counters, tag), attempt: 1 + nacks + crashes, leaseEnds: sent + (lease ?? usual) }
      jobs.push({ ...record, ...delivery, queue, id })
    }
    return { next, jobs }
  }

  ack = (job) => this.#settle('ack', job, [''])
  nack = (job, error = '', delay = -1) => this.#settle('nack', job, [delay, randomInt(2147483646), error])
  release = (job, delay = 0) => this.#settle('release', job, [delay])
  bury = (job, reason = '') => this.#settle('bury', job, [reason])

  /** Finish a delivery; what became of it, one of OUTCOMES. */
  async #settle(script, job, args) {
    const { number, epoch } = decodeId(job.id)
    const [done, code] = await this.#calls.script(script, job.queue, [epoch, job.receipt, ...args, number])
    return OUTCOMES[code ?? done]
  }

  /** Renew the lease from now on; `lease` 0 is the job's own. */
  async extend(job, lease = 0) {
    const { number, epoch } = decodeId(job.id)
    const sent = performance.now()
    const [now, until] = await this.#calls.script('extend', job.queue, [epoch, job.receipt, lease, 1, number])
    if (until < 1000) return OUTCOMES[until]
    job.leaseEnds = sent + until - now
    return 'done'
  }
}
