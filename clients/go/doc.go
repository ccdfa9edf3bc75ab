// Package idemq enqueues and runs jobs in idemq, the job queue in PostgreSQL in which the database effect of every job happens once.
//
// A queue is a value that names the queue, the type of its payloads and the type of its results:
//
//	var Mail = idemq.Queue[MailArgs, Receipt]{Name: "mail"}
//
// A producer enqueues a job in its own transaction, with [Queue.Enqueue].  A [Worker] runs handlers.  A handler that is registered with
// [Handle] writes through a transaction that also completes its job, so its effect happens exactly once.  A handler that is registered
// with [HandleOutside] has no transaction, so its effect happens at least once, or once if it uses [Step] and the other system can be
// asked whether a call has arrived.
//
// Payloads, results, checkpoints, requests and answers are JSON.  In values of an interface type, numbers arrive as [encoding/json.Number],
// so that no digit is lost.
//
// The package starts no goroutine before [Worker.Run], installs no signal handler and has no global state.  Every function and method is
// safe for concurrent use, except the methods of a handler's transaction.
package idemq
