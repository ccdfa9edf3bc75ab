/*
 * handler/limits.c
 *		How long a handler's function may run: until job_timeout has passed, or its job is being
 *		cancelled.  Also how long idemq's own statements wait for a lock in a handler process, and
 *		whether the process has received SIGTERM.
 *
 * When job_timeout passes, the function is cancelled, as by pg_cancel_backend.  If the function
 * catches this and has not returned KILL_DELAY later, the process ends, and handler/handler.c ends
 * the attempt on the way out.
 *
 * A session that cancels the job, takes it back or drops its queue has to wait for the job's row,
 * which this process has locked.  It sends SIGUSR2 (shared/waiters/listeners.c), which cancels the
 * function as well.  The job is then released (handler/settle.c); if it has been cancelled by then,
 * the release changes nothing.
 *
 * All of this applies only during the call of the function.  Otherwise, a cancellation during
 * COMMIT could end the wait for a synchronous standby.
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

/* How long after the cancellation the process ends, if the function has not returned: ms. */
#define KILL_DELAY 5000

volatile sig_atomic_t idemq_handler_timed_out = false;
volatile sig_atomic_t idemq_handler_cancelled = false;
volatile sig_atomic_t idemq_handler_terminated = false;

static TimeoutId cancel_timeout;
static TimeoutId kill_timeout;
/* Both timeouts are enabled. */
static volatile sig_atomic_t armed = false;

/* Cancels the function; called by signal handlers, too. */
static void
cancel_function(volatile sig_atomic_t *reason)
{
	*reason = true;
	QueryCancelPending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
}

/* Timeout handler: job_timeout has passed. */
static void
cancel_timed_out(void)
{
	if (armed)
		cancel_function(&idemq_handler_timed_out);
}

/* Timeout handler: the function has not returned KILL_DELAY after its cancellation. */
static void
kill_process(void)
{
	if (!armed)
		return;
	ProcDiePending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
}

/* SIGUSR2: cancels the function if it is the job that runs now whose attempt is being cancelled. */
static void
handle_job_cancelled(SIGNAL_ARGS)
{
	int save_errno = errno;

	if (idemq_listener_interrupted())
		cancel_function(&idemq_handler_cancelled);
	errno = save_errno;
}

/* SIGTERM. */
static void
handle_terminate(SIGNAL_ARGS)
{
	idemq_handler_terminated = true;
	die(COMPAT_SIGNAL_ARGS);
}

/* Prepares this process; call it once, after it has connected. */
void
idemq_handler_limits_begin(void)
{
	cancel_timeout = RegisterTimeout(USER_TIMEOUT, cancel_timed_out);
	kill_timeout = RegisterTimeout(USER_TIMEOUT, kill_process);
	pqsignal(SIGTERM, handle_terminate);
	pqsignal(SIGINT, StatementCancelHandler);
	pqsignal(SIGUSR2, handle_job_cancelled);
}

/*
 * Call this immediately before a job's function.  length: its job_timeout in microseconds; 0 means
 * no limit.  If another session is already cancelling the job, the function is interrupted at
 * once.
 */
void
idemq_handler_limit_start(int64 length, int64 job_id, int64 token)
{
	int64 ms = Min((length + 999) / 1000, PG_INT32_MAX - KILL_DELAY);

	idemq_handler_timed_out = false;
	QueryCancelPending = false; /* was meant for the previous job */
	idemq_handler_cancelled = false;
	idemq_listener_run(token);
	if (idemq_lease_is_cancelled(job_id, token))
		cancel_function(&idemq_handler_cancelled);
	if (length == 0)
		return;
	armed = true;
	enable_timeout_after(cancel_timeout, (int) ms);
	enable_timeout_after(kill_timeout, (int) ms + KILL_DELAY);
}

/* Call this when a job's function has returned or raised an error. */
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
 * Lowers lock_timeout to IDEMQ_LOCK_PATIENCE until the end of the transaction (GUC_ACTION_LOCAL)
 * or of the GUC nesting level (GUC_ACTION_SAVE).  While this process waited for a lock, no other
 * handler could use it.
 */
void
idemq_handler_limit_waits(GucAction action)
{
	if (LockTimeout == 0 || LockTimeout > IDEMQ_LOCK_PATIENCE)
		(void) set_config_option("lock_timeout", IDEMQ_LOCK_PATIENCE_TEXT, PGC_USERSET,
								 PGC_S_SESSION, action, true, 0, false);
}
