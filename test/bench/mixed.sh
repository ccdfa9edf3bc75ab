# shellcheck shell=bash
# Sourced by run.  5: producers and workers at once; one line a run to $work/mixed.
# shellcheck disable=SC2154 # work: script/lib.sh; variables of the user: run

# mixed side round: jobs finished in each quarter
mixed() {
	local side=$1 round=$2 before after start quarters produced

	fill "$side" 20000
	before=$(counters "$side")
	start=$(sql -c "SELECT clock_timestamp()")
	run both_at_once bench_client "$work/produce.log" 4 "enqueue_${side%-next}" -j 1 -T "$SECS5" -- \
		bench_client "$work/work.log" 4 "work_$side" -j 1 -T "$SECS5" ||
		piece_failed "producers and workers of $side" "$work/produce.log" "$work/work.log"
	after=$(counters "$side")
	produced=$(sql -c "SELECT count(*) - 20000 FROM $(table_of "$side")")
	quarters=$(sql -F ' ' -v start="$start" -v quarter="$(calc "$SECS5 / 4")" <<-SQL
		SELECT count(*) FILTER (WHERE q = 0), count(*) FILTER (WHERE q = 1),
			count(*) FILTER (WHERE q = 2), count(*) FILTER (WHERE q = 3)
		FROM (SELECT floor(extract(epoch FROM finished_at - :'start') / :quarter) AS q
			FROM $(table_of "$side") WHERE status = 'completed') j
	SQL
	)
	echo "mixed $side $SYNC5 $round $SECS5 $produced $quarters $before $after" >>"$work/mixed"
	say "4 producers, 4 workers, round $round: $side $quarters jobs completed in the four quarters of $SECS5 s"
	sql -c "TRUNCATE $(table_of "$side")"
}
