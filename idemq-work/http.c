/*
 * http.c: a POST for each job, by libcurl's multi interface in the loop that is there.
 *
 * A request is sent once.  libcurl sends one again by itself when a connection that it has used
 * before turns out to be closed; but the body comes from a callback that cannot be rewound, so it
 * fails in place of that.  Connections that were idle for more than a second are not used again,
 * which makes that rare.  No redirect is followed, and no proxy taken from the environment.
 *
 * Of what fails one question decides: has a byte of the request left?  If none has, nobody can
 * have begun the job: it is given back, uncounted, and the endpoint is down.  Then nothing is
 * claimed for a while, which grows to DOWN_MOST; then one job tries it, and whatever HTTP is
 * answered ends that.  If a byte has left, nobody knows, and the attempt counts.
 *
 * A whole answer decides, also when the request has not been read: it is not sent any further.
 *
 * What an endpoint sends is bounded: the connection is closed at more than --max-output bytes of a
 * body, by when the status has decided, and at more than HEADERS_MOST of headers.
 */
#ifdef HAVE_CURL
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include <curl/curl.h>

#include "executor.h"
#include "options.h"
#include "sign.h"
#include "text.h"

/* Bytes of all headers of an answer. */
#define HEADERS_MOST 65536
/* Bytes of a header of ours that repeats what the job has; many servers take 8 kB of all. */
#define HEADER_MOST 4096
/* How much of a body is kept as an error. */
#define ERROR_MOST 8192
/* Until there is a connection, with TLS. */
#define CONNECT_MS 10000L
/* Seconds that a connection may have been idle. */
#define IDLE_MOST 1L
/* A connection has a socket; one that is being made may have two, and one that resolves a name. */
#define SOCKETS_EACH 4
/* ms until a claim, when the endpoint is down. */
#define DOWN_FIRST 100
#define DOWN_MOST 10000

/* Columns of its own. */
enum
{
	COL_EFFECT_KEY = COL_MORE,
	COL_HEADERS,
	COL_TRACEPARENT,
	COL_TRACESTATE,
	COL_BAGGAGE,
	COL_CHECKPOINT,
	COL_RETRY_MAX_MS
};

/*
 * The key of the effect is the same for each attempt, and another one when the job runs again
 * after a commit, or with another payload; made as those of steps are, with the time of the enqueue
 * in place of the database's number: so a restored database has the same.  Rows of commits have no
 * payload.
 */
#define EFFECT_KEY                                                                                 \
	"CASE WHEN c.payload IS NOT NULL THEN (overlay(overlay(pg_catalog.left(pg_catalog.encode("     \
	"pg_catalog.sha256(pg_catalog.int8send(c.id) || pg_catalog.timestamptz_send(c.enqueued_at) ||" \
	" pg_catalog.int8send((SELECT pg_catalog.count(*) FROM idemq.attempts a WHERE a.job_id = c.id" \
	" AND a.outcome = 'committed')) || pg_catalog.jsonb_send(c.payload)), 'hex'), 32)"             \
	" PLACING '8' FROM 13) PLACING 'a' FROM 17))::uuid END"

struct request
{
	CURL *easy;
	bool running;
	bool over;
	bool stale; /* the connection that it was to go by has been closed */
	CURLcode code;
	char error[CURL_ERROR_SIZE];
	struct curl_slist *headers;
	char *body;
	size_t size;
	size_t sent;
	char *answer; /* the body of it; NULL: none yet */
	size_t answer_size;
	bool answer_cut;
	bool whole;			 /* there is all of it, before the request was sent */
	size_t header_bytes; /* so far */
	bool dead;			 /* Idemq-Dead: true */
	int64_t retry_in;	 /* Idemq-Retry-In, in ms; or BY_POLICY */
	int64_t retry_after; /* Retry-After, in ms; -1: there is none */
	int64_t retry_max;	 /* the queue's, in ms */
};

static struct request *requests;
static int over_count; /* that are over, and not collected */
static CURLM *multi;

/* What libcurl wants polled, and when it wants to be called. */
static struct pollfd *sockets;
static int socket_count;
static int64_t timer_at = NEVER;
static bool begun; /* a request: what has become of it already is to be read */

static int64_t down_since; /* 0: it is not down */
static int64_t down_wait;
static int64_t http_claim_at; /* not before: it is down, or has asked for that with Retry-After */

static int
on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *socket)
{
	int i = 0;

	(void) easy;
	(void) arg;
	(void) socket;
	while (i < socket_count && sockets[i].fd != fd)
		i++;
	if (what == CURL_POLL_REMOVE)
	{
		if (i < socket_count)
			sockets[i] = sockets[--socket_count];
		return 0;
	}
	if (i == SOCKETS_EACH * options.jobs)
		return -1;
	if (i == socket_count)
		socket_count++;
	sockets[i].fd = fd;
	sockets[i].events =
		(short) ((what & CURL_POLL_IN ? POLLIN : 0) | (what & CURL_POLL_OUT ? POLLOUT : 0));
	return 0;
}

static int
on_timer(CURLM *ours, long ms, void *arg)
{
	(void) ours;
	(void) arg;
	timer_at = ms < 0 ? NEVER : now_ms() + ms;
	return 0;
}

static void
run_timer(void)
{
	int running;

	if (now_ms() < timer_at)
		return;
	timer_at = NEVER;
	curl_multi_socket_action(multi, CURL_SOCKET_TIMEOUT, 0, &running);
}

static size_t
on_body_wanted(char *to, size_t size, size_t count, void *arg)
{
	struct request *request = arg;
	size_t left = request->size - request->sent;
	size_t n = size * count < left ? size * count : left;

	memcpy(to, request->body + request->sent, n);
	request->sent += n;
	return n;
}

#if LIBCURL_VERSION_NUM >= 0x075000 && defined(POLLRDHUP)
#define LOOKS_BEFORE_SENDING
/*
 * Before anything is sent: libcurl 8.23 looks once a second whether idle connections have been closed, or
 * have had what nobody asked for (7.88 does each time, and tells no socket here).  What it sent on such a
 * one would have failed, and counted, or been answered by that.
 */
static int
on_connected(void *arg, char *to, char *from, int to_port, int from_port)
{
	struct request *request = arg;
	struct pollfd fd = {.fd = -1, .events = POLLIN | POLLRDHUP};
	long made = 0;

	(void) to;
	(void) from;
	(void) to_port;
	(void) from_port;
	curl_easy_getinfo(request->easy, CURLINFO_NUM_CONNECTS, &made);
	curl_easy_getinfo(request->easy, CURLINFO_ACTIVESOCKET, &fd.fd);
	request->stale = made == 0 && poll(&fd, 1, 0) > 0;
	return request->stale ? CURL_PREREQFUNC_ABORT : CURL_PREREQFUNC_OK;
}
#endif

/* The value of a header, in place; NULL when it is another one. */
static char *
value_of(char *line, const char *name)
{
	size_t length = strlen(name);
	char *end;

	if (strncasecmp(line, name, length) != 0 || line[length] != ':')
		return NULL;
	line += length + 1;
	line += strspn(line, " \t");
	end = line + strlen(line);
	while (end > line && strchr(" \t\r\n", end[-1]) != NULL)
		end--;
	*end = '\0';
	return line;
}

/* Of Retry-After, seconds or a date, in ms from now; -1 for what is neither. */
static int64_t
read_retry_after(const char *value)
{
	time_t date;

	if (value[0] != '\0' && value[strspn(value, "0123456789")] == '\0')
		return sooner(strtoll(value, NULL, 10), INT64_MAX / 1000) * 1000;
	date = curl_getdate(value, NULL);
	return date == -1 ? -1 : later(date - time(NULL), 0) * 1000;
}

/*
 * Whether the answer is whole, of which so much has come, while the request is not: the other side may
 * never read the rest.  An answer without a length is seen to be whole by libcurl alone.
 */
static bool
answers_early(struct request *request)
{
	curl_off_t length = -1;
	curl_off_t sent = 0;
	long status = 0;

	curl_easy_getinfo(request->easy, CURLINFO_RESPONSE_CODE, &status);
	curl_easy_getinfo(request->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
	curl_easy_getinfo(request->easy, CURLINFO_SIZE_UPLOAD_T, &sent);
	request->whole =
		status >= 200 && sent < (curl_off_t) request->size &&
		(status == 204 || (length >= 0 && (curl_off_t) request->answer_size >= length));
	return request->whole;
}

static size_t
on_header(char *data, size_t size, size_t count, void *arg)
{
	struct request *request = arg;
	char line[256];
	const char *value;

	request->header_bytes += size * count;
	if (request->header_bytes > HEADERS_MOST)
		return 0;
	snprintf(line, sizeof(line), "%.*s", (int) (size * count), data);
	/* After an interim answer there is another one. */
	if (strncmp(line, "HTTP/", 5) == 0)
	{
		request->dead = false;
		request->retry_in = BY_POLICY;
		request->retry_after = -1;
	}
	else if ((value = value_of(line, "Retry-After")) != NULL)
		request->retry_after = read_retry_after(value);
	else if ((value = value_of(line, "Idemq-Dead")) != NULL)
		request->dead = strcasecmp(value, "true") == 0;
	else if ((value = value_of(line, "Idemq-Retry-In")) != NULL &&
			 !text_time(value, &request->retry_in))
		request->retry_in = BY_POLICY;
	/* The end of them. */
	else if (line[strspn(line, "\r\n")] == '\0' && answers_early(request))
		return 0;
	return size * count;
}

static size_t
on_answer(char *data, size_t size, size_t count, void *arg)
{
	struct request *request = arg;
	size_t room = options.max_output - request->answer_size;
	size_t n = size * count < room ? size * count : room;

	request->answer = memory(request->answer, request->answer_size + n + 1);
	memcpy(request->answer + request->answer_size, data, n);
	request->answer_size += n;
	request->answer[request->answer_size] = '\0';
	request->answer_cut = n < size * count;
	/* Less than what there is ends it. */
	return answers_early(request) ? 0 : n;
}

#define SET(option, value) curl_easy_setopt(easy, CURLOPT_##option, (value))

/* What is the same for all requests of a slot. */
static CURL *
new_easy(struct request *request)
{
	CURL *easy = curl_easy_init();

	if (easy == NULL)
		die(1, "out of memory");
	SET(URL, options.http);
	if (options.unix_socket != NULL)
		SET(UNIX_SOCKET_PATH, options.unix_socket);
#if LIBCURL_VERSION_NUM >= 0x075500
	SET(PROTOCOLS_STR, "http,https");
#else
	SET(PROTOCOLS, (long) (CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
	SET(HTTP_VERSION, (long) CURL_HTTP_VERSION_1_1);
	SET(PROXY, "");
	SET(FOLLOWLOCATION, 0L);
	SET(NOSIGNAL, 1L);
	SET(MAXAGE_CONN, IDLE_MOST);
	SET(USERAGENT, "idemq-work/" PROGRAM_VERSION);
	/* As curl itself has it, for certificates of one's own. */
	if (getenv("SSL_CERT_FILE") != NULL)
		SET(CAINFO, getenv("SSL_CERT_FILE"));
	SET(POST, 1L);
	SET(READFUNCTION, on_body_wanted);
	SET(READDATA, request);
#ifdef LOOKS_BEFORE_SENDING
	SET(PREREQFUNCTION, on_connected);
	SET(PREREQDATA, request);
#endif
	SET(HEADERFUNCTION, on_header);
	SET(HEADERDATA, request);
	SET(WRITEFUNCTION, on_answer);
	SET(WRITEDATA, request);
	SET(ERRORBUFFER, request->error);
	SET(PRIVATE, request);
	return easy;
}

static void
check_url(void)
{
	CURLU *url = curl_url();

	if (url == NULL || curl_url_set(url, CURLUPART_URL, options.http, 0) != CURLUE_OK)
		die(2, "--http requires a URL, such as http://127.0.0.1:3000/jobs, not \"%s\"",
			options.http);
	curl_url_cleanup(url);
}

static int
http_open(void)
{
	curl_global_init(CURL_GLOBAL_DEFAULT);
	check_url();
	if (options.sign_key_file != NULL)
		sign_read_keys(options.sign_key_file);
	multi = curl_multi_init();
	if (multi == NULL)
		die(1, "out of memory");
	curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, on_socket);
	curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, on_timer);
	curl_multi_setopt(multi, CURLMOPT_PIPELINING, (long) CURLPIPE_NOTHING);
	curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, (long) options.jobs);
	requests = memory(NULL, (size_t) options.jobs * sizeof(*requests));
	memset(requests, 0, (size_t) options.jobs * sizeof(*requests));
	for (int i = 0; i < options.jobs; i++)
		requests[i].easy = new_easy(&requests[i]);
	sockets = memory(NULL, SOCKETS_EACH * (size_t) options.jobs * sizeof(*sockets));
	return SOCKETS_EACH * options.jobs;
}

static bool
http_ready(int slot, int others)
{
	(void) slot;
	if (now_ms() < http_claim_at)
		return false;
	if (down_since == 0)
		return true;
	for (int i = 0; i < options.jobs; i++)
		others += requests[i].running;
	return others == 0;
}

static void __attribute__((format(printf, 2, 3)))
add_header(struct request *request, const char *format, ...)
{
	char line[HEADER_MOST + 128];
	struct curl_slist *headers;
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	headers = curl_slist_append(request->headers, line);
	if (headers == NULL)
		die(1, "out of memory");
	request->headers = headers;
}

/* Percent-encoded: what is not a letter, a digit or one of -._~ . */
static void
add_encoded(struct request *request, const char *name, const char *value)
{
	char *encoded;

	if (value == NULL)
		return;
	encoded = curl_easy_escape(request->easy, value, 0);
	if (encoded == NULL)
		die(1, "out of memory");
	add_header(request, "%s: %s", name, encoded);
	curl_free(encoded);
}

/* JSON in ASCII; what is too long is left out, and named in the list. */
static void
add_json(struct request *request, const char *name, const char *json, char *left_out)
{
	char *ascii;

	if (json == NULL)
		return;
	ascii = text_json_ascii(json);
	if (strlen(ascii) <= HEADER_MOST)
		add_header(request, "%s: %s", name, ascii);
	else
		sprintf(left_out + strlen(left_out), "%s%s", left_out[0] != '\0' ? ", " : "", name);
	free(ascii);
}

static void
add_signature(struct request *request, const struct task *task)
{
	char *queue = curl_easy_escape(request->easy, task_value(task, COL_QUEUE), 0);
	char timestamp[32];
	char *signature;
	char *id;
	size_t size;

	if (queue == NULL)
		die(1, "out of memory");
	size = strlen(queue) + strlen(task_value(task, COL_ID)) + strlen(task_value(task, COL_TOKEN)) +
		   3;
	id = memory(NULL, size);
	snprintf(id, size, "%s.%s.%s", queue, task_value(task, COL_ID), task_value(task, COL_TOKEN));
	snprintf(timestamp, sizeof(timestamp), "%lld", (long long) time(NULL));
	signature = sign(id, timestamp, request->body, request->size);
	add_header(request, "webhook-id: %s", id);
	add_header(request, "webhook-timestamp: %s", timestamp);
	add_header(request, "webhook-signature: %s", signature);
	curl_free(queue);
	free(id);
	free(signature);
}

/* A header whose value is sent as it is, if there is one. */
static void
add_given(struct request *request, const char *name, const char *value)
{
	if (value != NULL)
		add_header(request, "%s: %s", name, value);
}

static void
make_headers(struct request *request, const struct task *task)
{
	char left_out[64] = "";

	add_header(request, "Content-Type: application/json");
	add_header(request, "Expect:");
	add_encoded(request, "Idemq-Queue", task_value(task, COL_QUEUE));
	add_header(request, "Idemq-Id: %s", task_value(task, COL_ID));
	add_header(request, "Idemq-Token: %s", task_value(task, COL_TOKEN));
	add_header(request, "Idemq-Attempt: %s", task_value(task, COL_ATTEMPT));
	add_header(request, "Idemq-Max-Attempts: %s", task_value(task, COL_MAX_ATTEMPTS));
	add_encoded(request, "Idemq-Kind", task_value(task, COL_KIND));
	add_encoded(request, "Idemq-Key", task_value(task, COL_KEY));
	add_header(request, "Idemq-Deadline: %s", task->deadline);
	add_header(request, "Idempotency-Key: %s", task_value(task, COL_EFFECT_KEY));
	add_json(request, "Idemq-Checkpoint", task_value(task, COL_CHECKPOINT), left_out);
	add_json(request, "Idemq-Headers", task_value(task, COL_HEADERS), left_out);
	if (left_out[0] != '\0')
		add_header(request, "Idemq-Left-Out: %s", left_out);
	add_given(request, "traceparent", task_value(task, COL_TRACEPARENT));
	add_given(request, "tracestate", task_short_value(task, COL_TRACESTATE, TRACESTATE_MOST));
	add_given(request, "baggage", task_short_value(task, COL_BAGGAGE, BAGGAGE_MOST));
	if (options.sign_key_file != NULL)
		add_signature(request, task);
}

static void
send_request(struct request *request)
{
	request->stale = false;
	request->error[0] = '\0';
	if (curl_multi_add_handle(multi, request->easy) != CURLM_OK)
		die(1, "out of memory");
	request->running = begun = true;
	/* It is sent now, before the server is asked again. */
	run_timer();
}

static bool
http_start(int slot, const struct task *task)
{
	struct request *request = &requests[slot];
	CURL *easy = request->easy;

	request->body = copy_text(task_value(task, COL_TASK));
	request->size = strlen(request->body);
	request->retry_in = BY_POLICY;
	request->retry_after = -1;
	request->retry_max = strtoll(task_value(task, COL_RETRY_MAX_MS), NULL, 10);
	make_headers(request, task);
	SET(HTTPHEADER, request->headers);
	/* Before its time is over, which would count. */
	SET(CONNECTTIMEOUT_MS, (long) sooner(CONNECT_MS, later(task->timeout * 9 / 10, 1)));
	SET(POSTFIELDSIZE_LARGE, (curl_off_t) request->size);
	send_request(request);
	return true;
}

/* Frees what is of one request. */
static void
http_clear(struct request *request)
{
	CURL *easy = request->easy;

	over_count -= request->over;
	curl_slist_free_all(request->headers);
	free(request->body);
	free(request->answer);
	memset(request, 0, sizeof(*request));
	request->easy = easy;
}

static void
endpoint_is_down(const char *why)
{
	int64_t now = now_ms();

	/* Others that went there at the same time. */
	if (down_since != 0 && now < http_claim_at)
		return;
	if (down_since == 0)
	{
		down_since = now;
		down_wait = DOWN_FIRST;
		say("%s: %s; jobs wait until it responds", options.http, why);
	}
	else
		down_wait = sooner(down_wait * 2, DOWN_MOST);
	/* Not all runners at the same instant. */
	http_claim_at = later(http_claim_at, now + down_wait / 2 + rand() % (down_wait / 2 + 1));
	executor_lost = true;
}

static void
endpoint_is_up(void)
{
	if (down_since != 0)
		say("%s: is responding again after %.1f s", options.http,
			(double) (now_ms() - down_since) / 1000);
	down_since = 0;
	executor_lost = false;
}

/* The start of the body, as an error. */
static void
take_error(struct request *request, struct answer *answer)
{
	answer->said = request->answer;
	answer->said_size = request->answer_size < ERROR_MOST ? request->answer_size : ERROR_MOST;
	/* Not within a character. */
	while (answer->said_size == ERROR_MOST && answer->said_size > 0 &&
		   ((unsigned char) answer->said[answer->said_size] & 0xC0) == 0x80)
		answer->said_size--;
	request->answer = NULL;
}

static void
judge_status(struct request *request, long status, struct answer *answer)
{
	snprintf(answer->what, sizeof(answer->what), "HTTP %ld", status);
	snprintf(answer->details, sizeof(answer->details), "{\"http_status\": %ld}", status);
	if (status >= 200 && status < 300)
	{
		answer->verdict = COMMIT;
		if (!options.result)
			return;
		answer->result = request->answer_size > 0 ? request->answer : NULL;
		answer->result_size = request->answer_size;
		answer->result_cut = request->answer_cut;
		if (answer->result != NULL)
			request->answer = NULL;
		return;
	}
	answer->verdict = status == 422 || request->dead ? DEAD : FAIL;
	answer->delay = request->retry_in;
	take_error(request, answer);
	if (answer->verdict == DEAD || (status != 429 && status != 503) || request->retry_after < 0)
		return;
	answer->verdict = BUSY;
	answer->delay = sooner(request->retry_after, request->retry_max);
	if (status == 429 && options.holds && answer->delay > 0)
	{
		answer->verdict = HOLD; /* the server, not this process, keeps further jobs from starting */
		return;
	}
	http_claim_at = later(http_claim_at, now_ms() + answer->delay);
	executor_lost = true;
}

static void
http_judge(struct request *request, struct answer *answer)
{
	const char *why = request->error[0] != '\0' ? request->error
												: curl_easy_strerror(request->code);
	long status = 0;
	long sent = 0;

	answer->delay = BY_POLICY;
	curl_easy_getinfo(request->easy, CURLINFO_RESPONSE_CODE, &status);
	curl_easy_getinfo(request->easy, CURLINFO_REQUEST_SIZE, &sent);
	if (request->code == CURLE_OK || request->answer_cut || request->whole)
	{
		endpoint_is_up();
		judge_status(request, status, answer);
	}
	else if (sent == 0)
	{
		endpoint_is_down(why);
		answer->verdict = RELEASE;
		answer->delay = 0;
	}
	else
	{
		if (request->header_bytes > HEADERS_MOST)
			why = "the response's headers are too long";
		answer->verdict = FAIL;
		snprintf(answer->what, sizeof(answer->what), "incomplete response: %s", why);
		snprintf(answer->details, sizeof(answer->details), "{\"http_status\": %ld}", status);
		take_error(request, answer);
	}
}

static bool
http_over(int slot, struct answer *answer)
{
	struct request *request = &requests[slot];

	if (!request->over)
		return false;
	memset(answer, 0, sizeof(*answer));
	if (request->running)
		http_judge(request, answer);
	else
		take_error(request, answer);
	http_clear(request);
	return true;
}

/* Closes its connection: that is all that can be said to the other side. */
static void
http_cancel(int slot, bool again)
{
	struct request *request = &requests[slot];

	(void) again;
	if (!request->running || request->over)
		return;
	curl_multi_remove_handle(multi, request->easy);
	request->running = false;
	request->over = true;
	over_count++;
}

static int
http_poll(struct pollfd *fds)
{
	memcpy(fds, sockets, (size_t) socket_count * sizeof(*fds));
	return socket_count;
}

static void
http_serve(const struct pollfd *fds, int count)
{
	const CURLMsg *message;
	int n;

	for (int i = 0; i < count; i++)
	{
		int what = (fds[i].revents & (POLLIN | POLLHUP) ? CURL_CSELECT_IN : 0) |
				   (fds[i].revents & POLLOUT ? CURL_CSELECT_OUT : 0) |
				   (fds[i].revents & (POLLERR | POLLNVAL) ? CURL_CSELECT_ERR : 0);

		if (what != 0)
			curl_multi_socket_action(multi, fds[i].fd, what, &n);
	}
	run_timer();
	begun = false;
	while ((message = curl_multi_info_read(multi, &n)) != NULL)
	{
		struct request *request;

		if (message->msg != CURLMSG_DONE)
			continue;
		curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **) &request);
		request->code = message->data.result;
		curl_multi_remove_handle(multi, request->easy);
		/* That connection is gone with it: by another one. */
		if (request->stale)
			send_request(request);
		else
		{
			request->over = true;
			over_count++;
		}
	}
}

static int64_t
http_next(void)
{
	int64_t now = now_ms();

	if (over_count > 0 || begun)
		return now;
	return sooner(timer_at, http_claim_at > now ? http_claim_at : NEVER);
}

static void
http_drain(void)
{
}

static void
http_close(void)
{
	for (int i = 0; i < options.jobs; i++)
	{
		http_cancel(i, true);
		http_clear(&requests[i]);
		curl_easy_cleanup(requests[i].easy);
	}
	curl_multi_cleanup(multi);
	free(requests);
	free(sockets);
	curl_global_cleanup();
}

const struct executor http_executor = {
	.noun = "request",
	.answer = "the answer",
	.columns = "c.payload, " EFFECT_KEY ", c.headers, " TRACE_COLUMNS ", c.checkpoint,"
			   " coalesce((extract(epoch FROM q.retry_max) * 1000)::bigint, 3600000)",
	.open = http_open,
	.ready = http_ready,
	.start = http_start,
	.over = http_over,
	.cancel = http_cancel,
	.poll = http_poll,
	.serve = http_serve,
	.next = http_next,
	.drain = http_drain,
	.close = http_close,
};
#endif
