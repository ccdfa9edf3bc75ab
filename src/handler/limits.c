/*
 * handler/limits.c
 *		How long a handler's function may run: the job_timeout of its queue, armed by the
 *		process that runs it; that its job is being cancelled; how long idemq's own statements
 *		wait for a lock there; and whether the process was told to end.
 *
 * When the time is over, the function is cancelled, as by pg_cancel_backend.  If it catches
 * that, and is not done after KILL_DELAY more, the process ends: handler/handler.c then settles
 * the job on the way out.
 *
 * A session that cancels the job, takes it back or drops its queue waits for the row, which this
 * process holds, and sends SIGUSR2 (shared/waiters/listeners.c).  The function is cancelled as well,
 * and the job is given back (handler/settle.c), which undoes nothing if the job has been cancelled.
 *
 * The timers are set around the call alone: a cancel that came during the commit's wait for
 * a standby would end that wait.
 */
#include "postgres.h"

#include <signal.h>

#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/timeout.h"

#include "base/base.h"
#include "base/compat.h"
#include "handler/handler.h"
#include "shared/leases/leases.h"
#include "shared/waiters/waiters.h"

/* A function that has caught the cancel is ended after so many ms. */
#define KILL_DELAY 5000

static TimeoutId cancel_timeout;
static TimeoutId kill_timeout;
static volatile sig_atomic_t armed = false;
static volatile sig_atomic_t timed_out = false;
static volatile sig_atomic_t terminated = false;
static volatile sig_atomic_t cancelled = false;

/* Called when the time is over. */
static void
cancel(void)
{
	if (!armed)
		return;
	timed_out = true;
	QueryCancelPending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
}

/* Called KILL_DELAY later: the function has caught the cancel. */
static void
kill_process(void)
{
	if (!armed)
		return;
	ProcDiePending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
}

static void
cancel_function(void)
{
	cancelled = true;
	QueryCancelPending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
}

/* An attempt of this process is being cancelled: if it is the one that is running, it ends. */
static void
interrupt_cancelled(SIGNAL_ARGS)
{
	int save_errno = errno;

	if (idemq_listener_interrupted())
		cancel_function();
	errno = save_errno;
}

static void
terminate(SIGNAL_ARGS)
{
	terminated = true;
	die(COMPAT_SIGNAL_ARGS);
}

/* Prepares this process, once it is connected. */
void
idemq_handler_limits_begin(void)
{
	cancel_timeout = RegisterTimeout(USER_TIMEOUT, cancel);
	kill_timeout = RegisterTimeout(USER_TIMEOUT, kill_process);
	pqsignal(SIGTERM, terminate);
	pqsignal(SIGINT, StatementCancelHandler);
	pqsignal(SIGUSR2, interrupt_cancelled);
}

/*
 * Begins the time of a job; length: microseconds, 0: no limit.  A cancel that has come before
 * interrupts the function at once.
 */
void
idemq_handler_limit_start(int64 length, int64 job_id, int64 token)
{
	int64 ms = Min((length + 999) / 1000, PG_INT32_MAX - KILL_DELAY);

	timed_out = false;
	QueryCancelPending = false; /* it was for what came before */
	cancelled = false;
	idemq_listener_run(token);
	if (idemq_lease_is_cancelled(job_id, token))
		cancel_function();
	if (length == 0)
		return;
	armed = true;
	enable_timeout_after(cancel_timeout, (int) ms);
	enable_timeout_after(kill_timeout, (int) ms + KILL_DELAY);
}

/* Ends the time of a job; to be called after an error, too. */
void
idemq_handler_limit_stop(void)
{
	idemq_listener_run(0);
	if (armed)
	{
		armed = false;
		disable_timeout(cancel_timeout, false);
		disable_timeout(kill_timeout, false);
	}
	QueryCancelPending = false;
}

/*
 * Limits how long what follows waits for a lock, to the end of the transaction or of the level
 * of settings: the holder of the lock must not hold up the handlers of others.
 */
void
idemq_handler_limit_waits(GucAction action)
{
	if (LockTimeout == 0 || LockTimeout > IDEMQ_LOCK_PATIENCE)
		(void) set_config_option("lock_timeout", IDEMQ_LOCK_PATIENCE_TEXT, PGC_USERSET,
								 PGC_S_SESSION, action, true, 0, false);
}

/* Returns whether the time of the last job was over. */
bool
idemq_handler_timed_out(void)
{
	return timed_out;
}

/* Returns whether the last job's function was ended because the job is being cancelled. */
bool
idemq_handler_cancelled(void)
{
	return cancelled;
}

/* Returns whether this process was told to end: by the server's shutdown, or by somebody. */
bool
idemq_handler_terminated(void)
{
	return terminated;
}
