/*
 * idemq-work.c: has each job of a queue carried out, by a program, a request or a line (executor.h).
 *
 * One process, one loop around poll().  Two connections: `work` claims, renews leases and settles,
 * by statements that are short and waited for; `waiter` sleeps in CALL idemq.wait_any, and is
 * read in the loop, so that a wait holds up nothing.  It waits only when there is a free slot
 * and the last claim has found less than was asked for: a runner that is busy takes no wake-up
 * from one that is not.  A runner that is busy listens on it, also while it drains: the server ends
 * the wait when an attempt is cancelled or taken back, and heartbeats say which.  Every other process
 * is a program, or the keeper (keeper.c).
 *
 * Nothing is claimed for a slot that cannot take a job now (ready).
 *
 * The order within a round: what has ended is collected; then the server is told and asked
 * (settle, heartbeat, claim); only then the clocks are read.  So a runner that was stopped asks
 * whether its leases have lasted before it believes that they have not.
 *
 * SIGTERM, SIGINT and SIGHUP drain: no new claim; --grace for what runs, then its end; jobs that
 * were ended so are released, which counts no attempt.  A second signal ends the grace.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cluster.h"
#include "report_worker.h"
#include "init.h"
#include "job.h"
#include "keeper.h"
#include "options.h"
#include "slots.h"
#include "signals.h"
#include "text.h"

/*
 * How long the server sleeps in one CALL, or less where its statements may not take as long; and
 * until we think that it is no longer there.  No lease depends on that: the wait has a connection of its
 * own, and what it costs is that a free slot looks for jobs that much later.
 */
#define WAIT_MS 30000
#define WAIT_PATIENCE 15000

/*
 * The same behind a pooler, where a wait cannot be ended: a runner that is told to end lets it time out.
 * And how long it waits for that, or for the end of the wait that it has asked for.
 */
#define POOLED_WAIT_MS 3000
#define WAIT_ENDS 3500

/* Milliseconds that a job runs before a busy runner listens, so that short jobs cost nothing extra. */
#define LISTEN_AFTER 10

/* After an error of a claim or a wait. */
#define ERROR_PAUSE 5000

/* What is polled beside the executor's. */
#define OWN_FDS 4

/* While a statement is waited for the executor's times are looked at so often. */
#define MEANWHILE_MS 20

/*
 * What has succeeded waits so many ms at most for others that began as recently: they may end at the
 * same time, and share a commit.  Not when there are so many: they are worth one, while the
 * others run.
 */
#define GATHER_MS 2
#define GATHER_MOST 16

/* After the grace: maximum time from SIGTERM to SIGKILL, so that there is time to tell the server. */
#define LAST_KILL 2500

const struct executor *executor = &program_executor;
bool executor_lost;

static int executor_fds; /* at most */
static struct job *jobs;
static struct server work = {.name = "server"};
static struct server waiter = {.name = "server, for waiting"};

static bool look = true; /* there may be jobs to be claimed */
static bool claimed_once;
static bool waiting;
static bool listening;	  /* the wait is not for work, but only for what ends an attempt */
static bool listen_ended; /* the server was asked to end it */
static bool hinted;		  /* an attempt may have ended: heartbeats are due */
static int64_t wait_end;
static int64_t work_claim_at;		 /* not before */
static int64_t gather_until = NEVER; /* commits wait for others */
static bool work_draining;
static int64_t grace_end = NEVER;
static int64_t drain_end = NEVER;
static bool gave_up;

static int
busy_slots(void)
{
	int busy = 0;

	for (int i = 0; i < options.jobs; i++)
		busy += jobs[i].id != NULL;
	return busy;
}

static int
running(void)
{
	int count = 0;

	for (int i = 0; i < options.jobs; i++)
		count += jobs[i].running;
	return count;
}

/* Answers are waited for as long as the leases allow. */
static void
limit_answers(void)
{
	int64_t shortest = NEVER;

	for (int i = 0; i < options.jobs; i++)
	{
		if (job_holds(&jobs[i]))
			shortest = sooner(shortest, jobs[i].lease_ms);
	}
	server_keeps(shortest);
}

/* How many slots could take a job now; committing: also those of jobs that will be committed. */
static int
ready_slots(bool committing)
{
	int count = 0;

	for (int i = 0; i < options.jobs; i++)
	{
		if (jobs[i].id == NULL || (committing && job_commits(&jobs[i])))
			count += executor->ready(i, count);
	}
	return count;
}

/*
 * Heartbeats for all as soon as one is due; and with each new connection, since a server that
 * was started again has given attached leases a grace only.
 */
static void
work_beat(void)
{
	static int seen = 0;
	const char **ids;
	const char **tokens;
	char *values[2];
	const char *params[3];
	PGresult *result;
	int64_t now = now_ms();
	bool due = false;
	int count = 0;

	for (int i = 0; i < options.jobs; i++)
		due |= hinted && job_holds(&jobs[i]);
	hinted = due;
	for (int i = 0; i < options.jobs; i++)
		due |= job_holds(&jobs[i]) &&
			   (now >= jobs[i].beat_at || work.connections != seen || work.conn == NULL);
	if (!due || !server_ready(&work))
		return;
	seen = work.connections;
	hinted = false;
	ids = memory(NULL, (size_t) options.jobs * sizeof(*ids));
	tokens = memory(NULL, (size_t) options.jobs * sizeof(*tokens));
	for (int i = 0; i < options.jobs; i++)
	{
		if (job_holds(&jobs[i]))
		{
			ids[count] = jobs[i].id;
			tokens[count++] = jobs[i].token;
		}
	}
	values[0] = text_array(ids, count);
	values[1] = text_array(tokens, count);
	params[0] = values[0];
	params[1] = values[1];
	params[2] = options.lease;
	now = now_ms();
	result = server_ask(
		&work,
		"SELECT token, outcome FROM idemq.heartbeat_many($1::bigint[], $2::bigint[], $3::interval,"
		" end_waits => '{}')",
		3, params);
	if (result != NULL && PQresultStatus(result) != PGRES_TUPLES_OK)
		say("heartbeat: %s", PQresultErrorMessage(result));
	for (int i = 0; i < options.jobs && result != NULL; i++)
	{
		if (!job_holds(&jobs[i]))
			continue;
		/* Not answered for: the next third of the lease is the next try. */
		jobs[i].beat_at = now + jobs[i].lease_ms / 3;
		for (int row = 0; row < PQntuples(result); row++)
		{
			/* No two attempts have the same. */
			if (strcmp(jobs[i].token, PQgetvalue(result, row, 0)) == 0)
				job_heard(&jobs[i], PQgetvalue(result, row, 1), now);
		}
	}
	PQclear(result);
	free(values[0]);
	free(values[1]);
	free(ids);
	free(tokens);
}

/* Begins the attempts of a claim for that many slots, of which there are enough. */
static void
begin_claimed(const PGresult *result, int slots, int64_t asked_at)
{
	int claimed = 0;
	int slot = 0;

	if (!claimed_once)
		slots_tell(SAY_CLAIMED);
	claimed_once = true;
	for (int row = 0; row < PQntuples(result); row++)
	{
		/* The others are of commits. */
		if (strcmp(PQgetvalue(result, row, COL_OUTCOME), "claimed") != 0)
			continue;
		claimed++;
		while (slot < options.jobs && (jobs[slot].id != NULL || !executor->ready(slot, 0)))
			slot++;
		if (slot < options.jobs)
			job_begin(&jobs[slot], result, row, asked_at);
	}
	look = claimed >= slots;
}

static void
work_claim(int slots)
{
	int64_t now = now_ms();
	PGresult *result = job_claim(&work, slots);

	if (result == NULL)
		return;
	if (PQresultStatus(result) != PGRES_TUPLES_OK)
	{
		if (!claimed_once || options.once)
			gave_up = look = true;
		/* The schema does not exist. */
		if (server_state(result, "3F000"))
			say("claim: database \"%s\" does not have idemq: run CREATE EXTENSION idemq in it",
				PQdb(work.conn));
		else
			say("claim: %s", PQresultErrorMessage(result));
		work_claim_at = now_ms() + ERROR_PAUSE;
	}
	else
		begin_claimed(result, slots, now);
	PQclear(result);
}

/* Whether it is time to claim; there may be no slot. */
static bool
may_claim(void)
{
	return look && !work_draining && !gave_up && now_ms() >= work_claim_at;
}

/* Whether commits are to wait for what has just begun. */
static bool
gather(int commits)
{
	int64_t now = now_ms();
	bool young = false;

	for (int i = 0; commits > 0 && commits < GATHER_MOST && i < options.jobs; i++)
		young |= jobs[i].running && now - jobs[i].begun_at < GATHER_MS;
	if (!young || now >= gather_until)
	{
		gather_until = NEVER;
		return false;
	}
	gather_until = sooner(gather_until, now + GATHER_MS);
	return true;
}

/* Tells the server what has ended; what has succeeded together, and with the next claim. */
static void
work_settle(void)
{
	int slots = 0;
	int commits = 0;
	int64_t asked_at;
	PGresult *result;

	for (int i = 0; i < options.jobs; i++)
		commits += job_commits(&jobs[i]) || jobs[i].verdict == LINE;
	if (gather(commits))
		return;
	job_read_lines(jobs, &work);
	commits = 0;
	for (int i = 0; i < options.jobs; i++)
		commits += job_commits(&jobs[i]);
	if (commits > 0 && options.queue != NULL && may_claim() && server_ready(&work))
		slots = slots_for(ready_slots(true), running());
	for (int i = 0; i < options.jobs; i++)
	{
		if (jobs[i].id != NULL && !(job_commits(&jobs[i]) && (commits > 1 || slots > 0)))
			job_settle(&jobs[i], &work);
	}
	if ((commits <= 1 && slots <= 0) || !server_ready(&work))
		return;
	asked_at = now_ms();
	result = job_commit_all(jobs, &work, slots);
	if (result != NULL && slots > 0)
		begin_claimed(result, slots, asked_at);
	PQclear(result);
}

/* Begins a wait for a job of these queues; NULL: only for what ends an attempt. */
static void
send_wait(const char *queues)
{
	char length[32];
	const char *params[2] = {length, queues};
	int64_t ms = WAIT_MS;

	if (!waiter.own)
		ms = POOLED_WAIT_MS;
	if (waiter.patience > 0)
		ms = sooner(ms, waiter.patience * 8 / 10);
	snprintf(length, sizeof(length), "%lld ms", (long long) ms);
	if (!PQsendQueryParams(waiter.conn,
						   queues != NULL ? "CALL idemq.wait_any($2::text[], $1::interval)"
										  : "CALL idemq.wait(NULL, $1::interval)",
						   queues != NULL ? 2 : 1, NULL, params, NULL, NULL, 0))
	{
		server_lost(&waiter, PQerrorMessage(waiter.conn));
		return;
	}
	waiting = true;
	listening = queues == NULL;
	listen_ended = false;
	wait_end = now_ms() + ms + WAIT_PATIENCE;
}

static void
begin_wait(void)
{
	if (!server_ready(&waiter))
	{
		/* Without it, look from time to time. */
		look = true;
		work_claim_at = waiter.retry_at;
		return;
	}
	send_wait(options.queues);
}

/*
 * When to begin to listen for the end of an attempt, because no wait for work does; NEVER: not now.  A
 * runner that drains listens only as long as it has the connection.
 */
static int64_t
listen_at(void)
{
	int64_t at = NEVER;

	if (waiting || gave_up || (waiter.conn != NULL && !waiter.hears))
		return NEVER;
	if (work_draining ? waiter.conn == NULL : ready_slots(false) > 0 && !options.once)
		return NEVER;
	for (int i = 0; i < options.jobs; i++)
	{
		if (jobs[i].running)
			at = sooner(at, jobs[i].begun_at + LISTEN_AFTER);
	}
	return at == NEVER || waiter.conn != NULL ? at : later(at, waiter.retry_at);
}

static void
begin_listening(void)
{
	if (server_ready(&waiter) && waiter.hears)
		send_wait(NULL);
}

/* Ends the wait in which the runner listens.  The loop reads its result. */
static void
end_listening(void)
{
	char pid[16];
	const char *values[] = {pid};

	if (!waiting || !listening || listen_ended || work.conn == NULL)
		return;
	snprintf(pid, sizeof(pid), "%d", PQbackendPID(waiter.conn));
	PQclear(server_ask(&work,
					   "SELECT outcome FROM idemq.heartbeat_many('{}', '{}', NULL,"
					   " end_waits => ARRAY[$1::int])",
					   1, values));
	listen_ended = true;
	wait_end = sooner(wait_end, now_ms() + WAIT_PATIENCE);
}

static void
wait_is_lost(const char *why)
{
	server_lost(&waiter, why);
	waiting = false;
	look = true;
}

/*
 * Reads what the waiter has; its answer, whatever it is, is a reason to look.  If there is no work, an
 * attempt may have ended.
 */
static void
read_waiter(void)
{
	if (!PQconsumeInput(waiter.conn))
	{
		wait_is_lost(PQerrorMessage(waiter.conn));
		return;
	}
	while (waiting && !PQisBusy(waiter.conn))
	{
		PGresult *result = PQgetResult(waiter.conn);

		if (result == NULL)
		{
			look = look || !listening;
			waiting = false;
		}
		else if (PQresultStatus(result) == PGRES_TUPLES_OK)
			hinted = hinted || (waiter.hears && strcmp(PQgetvalue(result, 0, 0), "t") != 0);
		else if (PQresultStatus(result) == PGRES_FATAL_ERROR && server_gone(&waiter, result))
			wait_is_lost(PQresultErrorMessage(result));
		else if (PQresultStatus(result) == PGRES_FATAL_ERROR)
		{
			say("wait: %s", PQresultErrorMessage(result));
			work_claim_at = now_ms() + ERROR_PAUSE;
		}
		PQclear(result);
	}
}

/* Leaves a wait as it is: the session ends with the connection, when it wakes up. */
static void
leave_wait(void)
{
	server_close(&waiter);
	waiting = false;
}

/*
 * Ends the wait.  A cancel would also do that, but leave an error in the server's log at each deployment; so
 * the server is asked to end it, on the other connection, and the waiter's answer is read in the loop.
 * While something runs, the runner keeps listening.
 */
static void
end_wait(void)
{
	bool listens = waiter.conn != NULL && waiter.hears && running() > 0;

	if (listens && (listening || !waiting))
		return;
	if (waiting && waiter.own && work.conn != NULL)
		report_end_of_wait(&work, jobs, PQbackendPID(waiter.conn));
	/* Behind a pooler it runs out. */
	if (!waiting || (waiter.own && work.conn == NULL))
		leave_wait();
	wait_end = now_ms() + WAIT_ENDS;
}

/* Listens while something runs, although no more is claimed. */
static void
listen_in_drain(int busy)
{
	if (busy > 0 && now_ms() >= listen_at())
		begin_listening();
	else if (busy == 0 && waiting && listening && !listen_ended)
	{
		end_listening();
		if (!listen_ended)
			leave_wait();
		wait_end = sooner(wait_end, now_ms() + WAIT_ENDS);
	}
}

static void
begin_drain(void)
{
	work_draining = true;
	grace_end = signals_told_at() + options.grace;
	end_wait();
	if (busy_slots() > 0)
		say("stopping: %d %ss have %g s to finish", busy_slots(), executor->noun,
			(double) options.grace / 1000);
	executor->drain();
}

static void
drain(void)
{
	static int seen = 0;
	int told = signals_told();

	if (told != seen && work_draining)
		grace_end = now_ms();
	else if (told != seen)
		begin_drain();
	seen = told;
	if (now_ms() >= grace_end)
	{
		grace_end = NEVER;
		drain_end = signals_deadline();
		for (int i = 0; i < options.jobs; i++)
		{
			if (jobs[i].running && jobs[i].ending == ITS_OWN)
				job_end(&jobs[i], DRAINED);
			if (jobs[i].running)
				jobs[i].kill_at = sooner(jobs[i].kill_at, now_ms() + LAST_KILL);
		}
	}
	if (now_ms() >= drain_end)
	{
		gave_up = true;
		drain_end = NEVER;
		leave_wait();
		for (int i = 0; i < options.jobs; i++)
		{
			if (jobs[i].id != NULL && !jobs[i].running)
				job_give_up(&jobs[i]);
		}
	}
}

/* What the supervisor says: slots, or that the shard is elsewhere now. */
static void
listen_to_supervisor(void)
{
	static char *at = NULL;
	char *address = slots_read();

	if (address == NULL)
		return;
	say("the server has moved");
	server_move(&work, address);
	server_move(&waiter, address);
	free(at);
	at = address;
	waiting = false;
	look = true;
	work_claim_at = 0;
}

/* One round; whether there is to be another. */
static bool
round_of_work(void)
{
	int before = busy_slots();
	int busy;

	for (int i = 0; i < options.jobs; i++)
		job_collect(&jobs[i]);
	limit_answers();
	work_settle();
	work_beat();
	for (int i = 0; i < options.jobs; i++)
	{
		job_doubt(&jobs[i], &work);
		if (jobs[i].id != NULL)
			job_watch(&jobs[i]);
	}
	drain();
	busy = busy_slots();
	if (work_draining)
	{
		listen_in_drain(busy);
		return busy > 0 || waiting;
	}
	if (gave_up && (options.once || !claimed_once))
		return busy > 0;
	/* An end may let another begin: of its group, or below its queue's limit. */
	if (options.once && busy < before)
		look = true;
	if (may_claim() && ready_slots(false) > 0)
	{
		if (server_ready(&work))
		{
			int slots = slots_for(ready_slots(false), running());

			if (slots > 0)
				work_claim(slots);
		}
		else if (options.once && busy == 0)
			gave_up = true;
		busy = busy_slots();
	}
	if (now_ms() >= listen_at())
		begin_listening();
	if (options.once && executor_lost && busy == 0)
		gave_up = true;
	if (options.once)
		return busy > 0 || (look && !gave_up);
	if (!look && listening && ready_slots(false) > 0)
		end_listening();
	if (!look && !waiting && ready_slots(false) > 0 && now_ms() >= work_claim_at)
		begin_wait();
	return true;
}

/* When the next round is due, if nothing happens before. */
static int64_t
next_round(void)
{
	int64_t next = sooner(sooner(grace_end, drain_end),
						  sooner(executor->next(), work.conn == NULL ? NEVER : next_report()));
	int64_t server_at = work.conn == NULL ? work.retry_at : 0;
	int busy = busy_slots();

	if (gather_until != NEVER)
		return gather_until;
	/* A connection that is lost is made again as soon as there is a job that may need it. */
	if (work.conn == NULL && busy > 0)
		next = sooner(next, server_at);
	for (int i = 0; i < options.jobs; i++)
	{
		if (jobs[i].id != NULL)
			next = sooner(next, job_next(&jobs[i], server_at));
	}
	if (waiting)
		next = sooner(next, wait_end);
	next = sooner(next, listen_at());
	if (!work_draining && ready_slots(false) > 0 &&
		(look ? work.conn == NULL || !slots_awaited() : !waiting))
		next = sooner(next, later(server_at, work_claim_at));
	return next;
}

/* Sleeps until something happens, and serves what did. */
static void
serve(struct pollfd *fds)
{
	int64_t now = now_ms();
	int64_t next = next_round();
	int count = OWN_FDS;

	fds[0] = (struct pollfd){.fd = signals_fd(), .events = POLLIN};
	fds[1] = (struct pollfd){.fd = work.conn ? PQsocket(work.conn) : -1, .events = POLLIN};
	fds[2] = (struct pollfd){.fd = waiter.conn ? PQsocket(waiter.conn) : -1, .events = POLLIN};
	fds[3] = (struct pollfd){.fd = slots_fd, .events = POLLIN};
	count += executor->poll(fds + count);
	if (poll(fds, (nfds_t) count,
			 next == NEVER ? -1
			 : next <= now ? 0
						   : (int) sooner(next - now, 3600 * 1000)) < 0)
	{
		if (errno != EINTR)
			die(1, "poll: %m");
		return;
	}
	signals_heard();
	/* Nothing was asked: it is the end of the connection, or a message about it. */
	if (fds[1].revents != 0 && work.conn != NULL && !PQconsumeInput(work.conn))
		server_lost(&work, PQerrorMessage(work.conn));
	if (fds[2].revents != 0 && waiter.conn != NULL)
		read_waiter();
	else if (waiting && now_ms() >= wait_end && work_draining)
		leave_wait();
	else if (waiting && now_ms() >= wait_end)
		wait_is_lost("the server is not responding");
	if (fds[3].revents != 0)
		listen_to_supervisor();
	executor->serve(fds + OWN_FDS, count - OWN_FDS);
}

/* While a statement is waited for, what is carried out goes on. */
static bool
serve_meanwhile(int fd, int ms)
{
	static struct pollfd *fds = NULL;
	int count;

	if (fds == NULL)
		fds = memory(NULL, (1 + (size_t) executor_fds) * sizeof(*fds));
	fds[0] = (struct pollfd){.fd = fd, .events = POLLIN};
	count = executor->poll(fds + 1);
	if (poll(fds, (nfds_t) count + 1, (int) sooner(ms, MEANWHILE_MS)) < 0)
	{
		if (errno != EINTR)
			die(1, "poll: %m");
		return false;
	}
	executor->serve(fds + 1, count);
	return fds[0].revents != 0;
}

/* Whatever has ended a connection may have moved its shard. */
static void
ask_for_map(void)
{
	static int seen = 0;

	if (server_losses != seen)
		slots_tell(SAY_MAP);
	seen = server_losses;
}

int
main(int argc, char **argv)
{
	struct pollfd *fds;
	int fd;

	options_read(argc, argv);
	/* 0, 1 and 2 are to be what they are for everybody. */
	while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= 2)
		;
	close_fd(&fd);
	init_start();
	cluster_start();
	srand((unsigned) getpid());
	keeper_start();
	signals_catch();
	if (options.lines)
		executor = &lines_executor;
#ifdef HAVE_CURL
	else if (options.http != NULL)
		executor = &http_executor;
#endif
	work.dsn = options.dsn;
	waiter.dsn = options.wait_dsn;
	jobs = memory(NULL, (size_t) options.jobs * sizeof(*jobs));
	memset(jobs, 0, (size_t) options.jobs * sizeof(*jobs));
	for (int i = 0; i < options.jobs; i++)
		jobs[i].slot = i;
	job_make_sql();
	executor_fds = executor->open();
	server_wait = serve_meanwhile;
	server_process = report_process();
	fds = memory(NULL, (OWN_FDS + (size_t) executor_fds) * sizeof(*fds));
	server_of_cluster = slots_fd >= 0;
	while (round_of_work())
	{
		slots_keep(running());
		ask_for_map();
		report_worker(&work, jobs, false);
		serve(fds);
	}
	report_worker(&work, jobs, true);
	end_listening();
	server_close(&waiter);
	server_close(&work);
	executor->close();
	keeper_stop();
	free(fds);
	return gave_up ? 1 : 0;
}
