// One connection to one server: protocol/core.md, Calling a script, Repeats and Connections.
import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { key } from './formats.mjs'

const OPTIONS = { // no retries by ioredis, no commands of its own, and a time-out longer than any BLPOP
  retryStrategy: null,
  enableReadyCheck: false,
  disableClientInfo: true,
  protocol: 2,
  connectTimeout: 2000,
  socketTimeout: 10000,
}
const REPEATED = /(^|[ -])(READONLY|MASTERDOWN|LOADING|NOREPLICAS|BUSY|MISCONF|TRYAGAIN|UNBLOCKED) /

/** True if the server has answered, and a repeat would not help. */
export const isFinal = (error) => error.name === 'ReplyError' && !REPEATED.test(error.message)

function connect(url) {
  return new Redis(url, OPTIONS).on('error', () => {}) // the pending call fails and reports it
}

export class Connection {
  #redis = null
  #last = Promise.resolve()
  #nonce = 0
  #producer = randomBytes(8).toString('hex')

  constructor(url, prefix, retryFor, scripts = {}) {
    Object.assign(this, { url, prefix, retryFor, scripts })
  }

  close() {
    this.#redis?.disconnect()
    this.#redis = null
  }

  /** Run `step` after the earlier ones. Repeat it on a new connection while its outcome is unknown. */
  run(step) {
    const result = this.#last.then(() => this.#repeat(step))
    this.#last = result.catch(() => {})
    return result
  }

  async #repeat(step) {
    const until = performance.now() + this.retryFor
    for (let pause = 5; ; pause = Math.min(pause * 2, 250)) {
      try {
        this.#redis ??= connect(this.url)
        return await step(this.#redis)
      } catch (error) {
        if (isFinal(error)) throw error
        this.close()
        if (performance.now() > until) throw error
        await sleep(Math.random() * pause)
      }
    }
  }

  command(...words) {
    return this.run((redis) => redis.callBuffer(...words.map(String)))
  }

  /** Call a script, and return its reply without the nonce. */
  async script(name, queue, args) {
    const { keys, sha1, source } = this.scripts[name]
    const nonce = String((this.#nonce += 1))
    const names = keys.map((kind) => key(this.prefix, queue, kind === 'producer' ? `producer:${this.#producer}` : kind))
    const call = ['EVALSHA', sha1, names.length, ...names, nonce, ...args]
    try {
      return await this.run(async (redis) => {
        const [code, echoed, ...values] = await redis.callBuffer(...call).catch(async (error) => {
          if (!error.message.includes('NOSCRIPT')) throw error
          await redis.callBuffer('SCRIPT', 'LOAD', source)
          return redis.callBuffer(...call)
        })
        if (String(echoed) !== nonce) throw new Error('this is the reply to another call')
        return [code, ...values]
      })
    } catch (error) {
      if (!isFinal(error)) this.#producer = randomBytes(8).toString('hex') // the outcome is unknown
      throw error
    }
  }
}
