# shellcheck shell=bash
# Sourced by run.  7: does it matter what else is in the queue?  One line a piece
# goes to $work/pieces.
# shellcheck disable=SC2154 # work: script/lib.sh; variables of the user: run
#
# A queue of 10 thousand is empty in half a second, so a piece is a sum of
# bursts: BURST7 jobs are claimed and committed by 8 clients, timed; then as many
# are enqueued, and a checkpoint is made, both untimed.  All sides do it alike:
# each has the same new backends, the same pages to touch for the first time
# since a checkpoint, and never the producer's work in its figure.  SMALL7 jobs
# are pending on average; the sides differ only in what is there besides.

# in_front side: statements for what stands in front of the SMALL7 pending jobs
in_front() {
	local left=$SCHEDULED7 chunk

	case $1 in
	idemq-scheduled)
		# of the first priority, so that every claim has to get past them
		while [ "$left" -gt 0 ]; do
			chunk=$((left < 100000 ? left : 100000))
			left=$((left - chunk))
			echo "SELECT count(*) FROM idemq.enqueue_many('bench', array_fill(:'payload'::jsonb, ARRAY[$chunk]),
				run_ats => array_fill(now() + interval '1 day', ARRAY[$chunk]), priorities => array_fill(0, ARRAY[$chunk]));"
		done
		;;
	idemq-inflight)
		fill_statement idemq "$INFLIGHT7"
		echo "SELECT 1 / (count(*) = $INFLIGHT7)::int FROM idemq.claim('bench', $INFLIGHT7, lease => '1 day');"
		;;
	idemq-blocked)
		echo "SELECT count(*) FROM idemq.enqueue_many('bench', array_fill(:'payload'::jsonb, ARRAY[$BLOCKED7]),
			group_keys => array_fill('one'::text, ARRAY[$BLOCKED7]));"
		echo "SELECT 1 / (count(*) = 1)::int FROM idemq.claim('bench', 1, lease => '1 day');"
		;;
	esac
}

# bursts side round: of BURST7 jobs each, until SECS7 seconds have been timed
bursts() {
	local side=$1 round=$2 log=$work/pgbench.log what rows before after sent rate
	local sums=(0 0 0 0) i jobs=0 seconds=0

	what="claim + commit, $side, round $round"
	rows=$((SMALL7 + BURST7 / 2))
	[ "$side" != idemq-backlog ] || rows=$BACKLOG7
	fill "$side" "$rows" "$(in_front "$side")"
	while [ "$(calc "$seconds < $SECS7")" = 1 ]; do
		before=($(counters "$side"))
		run bench_client "$log" 8 cycle_idemq -t "$((BURST7 / 8))" || piece_failed "$what" "$log"
		after=($(counters "$side"))
		for i in "${!sums[@]}"; do
			sums[i]=$((sums[i] + after[i] - before[i]))
		done
		read -r sent rate _ < <(client_said "$log")
		jobs=$((jobs + sent))
		seconds=$(calc "$seconds + $sent / $rate")
		{ fill_statement "$side" "$sent"; echo "CHECKPOINT;"; } | sql -v payload="$payload" >/dev/null
	done
	agree "$what" "$jobs" "$(jobs_in completed "$side")"
	rate=$(calc "$jobs / $seconds")
	echo "backlog $side 8 $SYNC7 $round $jobs $rate 1 $(calc "8000 / $rate") 0 0 0 0 ${sums[*]}" >>"$work/pieces"
	say "$what: $rate jobs/s in $((jobs / (BURST7 / 8 * 8))) bursts"
	sql -c "TRUNCATE $(table_of "$side")"
}
