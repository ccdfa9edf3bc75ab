# What the scripts promise to the person who runs them, on any machine.
# at least 77 assertions

use strict;
use warnings FATAL => 'all';
use lib "$ENV{IDEMQ_SOURCE}/test/t/lib";

use IPC::Run;
use NextVersion;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = $ENV{IDEMQ_SOURCE};
my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $output;

# A script of bash's with script/lib.sh; answers what it says.
sub script
{
	my ($text, @arguments) = @_;

	IPC::Run::run([ 'bash', '-c', ". '$source/script/lib.sh'; $text", 'script', @arguments ], '<', \undef, '>&', \$output, IPC::Run::timeout(180));
	return $output;
}

# Root's PATH may begin with a folder that user postgres may not search.
mkdir "$tmp/closed", 0 or die "$tmp/closed: $!";
{
	local $ENV{PATH} = "$tmp/closed:$ENV{PATH}";
	my $missing = 'import subprocess; subprocess.run(["no-such-program"])';

	like(IPC::Run::run([ '/usr/bin/python3', '-c', $missing ], '>&', \$output) . $output, qr/PermissionError/, 'such a PATH forbids what is not there');
	like(script('as_server /usr/bin/python3 -c "$1"', $missing), qr/FileNotFoundError/, 'that of programs of the server has no such folder');
	is(script('bindir=/usr as_server printenv PATH') =~ s/:.*//sr, '/usr', 'and begins with the private PostgreSQL');
}

# What would be installed is said; NO_INSTALL=1 does without.
{
	mkdir "$tmp/bin" or die "$tmp/bin: $!";
	foreach my $program ([ 'id', 'echo 0' ], [ 'apt-get', "touch '$tmp/called'" ],
		[ 'dpkg-query', q{for p; do case $p in mandoc | mypy | prometheus) ;; *) printf 'installed:%s ' "$p" ;; esac; done} ])
	{
		append_to_file("$tmp/bin/$program->[0]", "#!/bin/sh\n$program->[1]\n");
		chmod 0755, "$tmp/bin/$program->[0]" or die $!;
	}
	local @ENV{qw(PATH NO_INSTALL)} = ("$tmp/bin:$ENV{PATH}", 1);
	my $install = sub { return IPC::Run::run([ "$source/script/install-packages", @_ ], '<', \undef, '>&', \$output) };

	ok($install->('test', 'lint'), 'make test needs few packages');
	ok(!$install->('test-all', 'lint'), 'what is needed ends the run');
	is($output, "missing packages; as root: apt-get install mandoc mypy\n", 'and is named');
	ok($install->('test-all', 'tap'), 'what is wished for does not');
	is($output, "done without: prometheus\n", 'and is named, too');
	ok(!-e "$tmp/called", 'nothing is installed');
}

# Lint looks again at what has changed, and at what has not passed; CI=true at all.  Its checks are two of our own here.
{
	my $tree = "$tmp/tree";
	my $looked;
	my $lint = slurp_file("$source/script/lint") =~ s/^(reads=\S+ )?check ".*//msr;

	# Lint looks again when the machine's packages have changed.  Here they are a file of our own.
	$lint =~ s{/var/lib/dpkg/status}{$tmp/packages}g or die;
	append_to_file("$tmp/packages", "gcc\n");
	my $write = sub { my ($file, $text) = @_; unlink "$tree/$file"; append_to_file("$tree/$file", $text) };
	my $run = sub {
		unlink "$tmp/looked";
		IPC::Run::run([ 'bash', "$tree/script/lint" ], '<', \undef, '>&', \$output);
		$looked = -e "$tmp/looked" ? join ' ', sort split ' ', slurp_file("$tmp/looked") : '';
	};

	mkdir $_ or die "$_: $!" foreach $tree, map { "$tree/$_" } 'script', 'src', 'doc';
	$write->('script/lint', "$lint
look() { echo \$1 >>'$tmp/looked'; grep -H mistake \$1/* || true; ! grep -q failure \$1/*; }
reads='src/' check 'of src' look src
check 'of doc' look doc
all_shown
[ \$unchanged -eq 0 ] || echo unchanged: \$unchanged
exit \$bad
");
	$write->($_, "text\n") foreach 'src/a.c', 'doc/a.txt', 'Makefile';
	local $ENV{CI} = '';

	$run->();
	is("$looked: $output", "doc src: ok of src\nok of doc\n", 'lint looks at what it has not seen');
	$run->();
	is("$looked: $output", "doc: ok of src\nok of doc\nunchanged: 1\n", 'not again at what has passed, where it is told what is read');
	$write->('doc/b.txt', 'text');
	$run->();
	is($looked, 'doc', 'nor when another file has changed');
	foreach my $bad ([ 'mistake', "src/a.c:mistake\n" ], [ 'failure', '' ])
	{
		$write->('src/a.c', $bad->[0]);
		foreach my $time ('that has changed', 'that has not passed')
		{
			$run->();
			is("$looked: $output", "doc src: not ok of src\n$bad->[1]ok of doc\n", "at a file $time: a $bad->[0]");
		}
	}
	$write->('src/a.c', "text\n");
	$run->();
	is($looked, 'doc', 'at no file that is as it was when it passed');
	foreach my $change ([ 'src/b.c', "text\n" ], [ 'Makefile', "all:\n" ], [ 'dev.mk', "test:\n" ], [ 'script/lib.sh', "true\n" ])
	{
		$write->(@$change);
		$run->();
		is($looked, 'doc src', "but when $change->[0] is new, or another");
		$run->();
		is($looked, 'doc', 'once');
	}
	append_to_file("$tmp/packages", "clang\n");
	$run->();
	is($looked, 'doc src', 'and when a package is new');
	$ENV{CI} = 'true';
	$run->();
	is("$looked: $output", "doc src: ok of src\nok of doc\n", 'with CI=true at everything');

	# A tool that is not installed leaves its check out; the others run.
	$write->('script/lint', "$lint
gone() { takes no-such-tool; echo looked; }
check 'with a tool' gone
check 'without' true
all_shown
exit \$bad
");
	$run->();
	is($output, "not ok with a tool\nno no-such-tool\nok without\n", 'with CI=true, a check fails whose tool is not installed');
	$ENV{CI} = '';
	$run->();
	is($output, "LEFT OUT: with a tool: no no-such-tool\nok without\n", 'otherwise it is left out');
}

# What the last version had is kept: each rule of src/README.md, broken.
{
	my $tree = "$tmp/kept";
	my $frozen = "$tmp/frozen.sql";
	my $run = sub { IPC::Run::run([ 'python3', "$source/script/check/kept", @_ ], '<', \undef, '>&', \$output, IPC::Run::timeout(300)); return $output };
	my @broken = (
		[ 'a symbol', 'src/api/finish.c', qr/SQL_FUNCTION\(idemq_sql_commit\)/, 'static Datum commit(void)', 'idemq_sql_commit is gone, which idemq.commit of the version before calls' ],
		[ 'a primitive', 'src/api/internal.c', qr/SQL_FUNCTION\(idemq_sql_internal_check_kind\)/, 'SQL_FUNCTION(idemq_sql_v2_internal_check_kind)',
			'idemq_sql_internal_check_kind is gone, which idemq_internal.check_kind of the version before calls' ],
		[ 'arguments of a primitive', 'sql/parts/05_internal.sql', qr/check_kind\(kind text\)/, 'check_kind(kind text, name text)',
			'idemq_internal.check_kind: other arguments want another symbol than idemq_sql_internal_check_kind' ],
		[ 'an argument in the middle', 'sql/parts/40_jobs.sql', qr/idemq\.cancel\(id bigint\)/, 'idemq.cancel(why text, id bigint)',
			"idemq.cancel cannot be called any more as it was, or answers something else\nidemq.cancel: other arguments want another symbol than idemq_sql_cancel" ],
		[ 'a further argument, of the same symbol', 'sql/parts/40_jobs.sql', qr/idemq\.cancel\(id bigint\)/, "idemq.cancel(id bigint, why text DEFAULT '')",
			'idemq.cancel: other arguments want another symbol than idemq_sql_cancel' ],
		[ 'a further argument without a default, of another', 'sql/parts/40_jobs.sql', qr/idemq\.cancel\(id bigint\)(.*?)idemq_sql_cancel/s, 'idemq.cancel(id bigint, why text)$1idemq_sql_v2_cancel',
			'idemq.cancel cannot be called any more as it was, or answers something else' ],
		[ 'a default', 'sql/parts/30_queues.sql', qr/(lease interval) DEFAULT '30[ ]s'/, '$1', 'idemq.create_queue cannot be called any more as it was, or answers something else' ],
		[ 'a column of a result', 'sql/parts/40_jobs.sql', qr/(RETURNS TABLE \(ord int), /, '$1, more int, ', 'idemq.enqueue_many cannot be called any more as it was, or answers something else' ],
		[ 'a row type', 'sql/parts/10_types.sql', qr/(CREATE TYPE idemq.admission AS \(\n.*),/, "\$1,\n\tmore int,",
			'type idemq.admission is not what it was: allowed boolean, remaining int, retry_after interval' ],
		[ 'an enum', 'sql/parts/10_types.sql', qr/'dead', 'cancelled'\);/, "'dead', 'cancelled', 'gone');",
			"enum idemq.status is not what it was: 'blocked', 'pending', 'running', 'retrying', 'completed', 'dead', 'cancelled'" ],
		[ 'a view', 'sql/parts/70_observing.sql', qr/AS SELECT resource, used,/, 'AS SELECT resource, used, 1 AS more,', 'view idemq.memory is not what it was: resource, used, size, refused' ],
		[ "a column's place", 'sql/parts/20_tables.sql', qr/\theaders      jsonb,\n/, "\tmore int,\n\theaders jsonb,\n", 'table idemq.jobs: a column that was there has changed, or has another place' ],
		[ "a column's type", 'sql/parts/20_tables.sql', qr/(\tpriority +)smallint/, '$1int', 'table idemq.jobs: a column that was there has changed, or has another place' ],
		[ 'a column that may not be NULL', 'sql/parts/20_tables.sql', qr/(\tpayload +jsonb NOT NULL,)/, "\$1\n\tmore int NOT NULL,", 'table idemq.jobs: column more is new, and may not be NULL' ],
		[ 'a column that may', 'sql/parts/20_tables.sql', qr/(\tpayload +jsonb NOT NULL,)/, "\$1\n\tmore int,", '' ],
		[ 'a table', 'sql/parts/46_events.sql', qr/CREATE TABLE idemq\.events \(/, 'CREATE TABLE idemq.happened (', 'table idemq.events is gone' ],
		[ "a client's call", 'clients/python/idemq/_run.py', qr/^(_HEARTBEAT = .*)idemq\.heartbeat_many\(/m, '$1idemq.heartbeat_all(', 'clients/python/idemq/_run.py: idemq.heartbeat_all, which the version before has not' ],
		[ "a client's argument", 'clients/node/lib/enqueue.js', qr/, delay => /, ', slowly => $5::bool, delay => ', 'clients/node/lib/enqueue.js: idemq.enqueue(slowly => ...), which the version before has not' ],
		[ "a call of the page", 'ui/src/actions.mjs', qr/idemq\.cancel\((\$1)\)/, 'idemq.cancel($1, why => $2)', 'ui/src/actions.mjs: idemq.cancel(why => ...), which the version before has not' ],
		[ "a client's new call", 'clients/python/idemq/_run.py', qr/^(_HEARTBEAT = .*)idemq\.heartbeat_many\(/m, "# since 9.0.0\n\$1idemq.heartbeat_all(", '' ]);

	system_or_bail('bash', '-c', "mkdir '$tree' && cd '$source' && cp -r --parents sql/parts clients/python/idemq clients/node/lib ui/src idemq.control Makefile '$tree' && find src idemq-work -name '*.c' -exec cp --parents {} '$tree' \\; && cat sql/parts/*.sql >'$frozen'");
	is($run->($frozen, $tree), '', 'this version keeps what it has');
	foreach my $it (@broken)
	{
		my ($name, $file, $from, $to, $said) = @$it;
		my $was = slurp_file("$tree/$file");
		my $is = $was;

		$is =~ $from or die "$file has not $from";
		substr($is, $-[0], $+[0] - $-[0]) = join $1 // '', split /\$1/, $to, -1;
		unlink "$tree/$file";
		append_to_file("$tree/$file", $is);
		is($run->($frozen, $tree), $said eq '' ? '' : "$said\n", "changed: $name" . ($said eq '' ? ', which may be' : ''));
		unlink "$tree/$file";
		append_to_file("$tree/$file", $was);
	}

	# Lint looks at the last release that the library works with: there is none yet, none is that, or one is.
	my ($this) = slurp_file("$tree/idemq.control") =~ /^default_version = '(.*)'/m;
	my $makefile = slurp_file("$tree/Makefile");
	my $later = $this =~ s/\.(\d+)\./'.' . ($1 + 1) . '.'/er;
	system_or_bail('cp', $frozen, "$tree/sql/idemq--$_.sql") foreach $this, "$later-rc.2", "$later-rc.10";
	system_or_bail('sed', '-i', 's/CREATE TABLE idemq.steps/CREATE TABLE idemq.stages/', "$tree/sql/idemq--$later-rc.10.sql");
	system_or_bail('sed', '-i', 's/CREATE TABLE idemq.events/CREATE TABLE idemq.happened/', "$tree/sql/parts/46_events.sql");
	my $lint = sub { return script('cd "$1" && python3 "$2"', $tree, "$source/script/check/kept") };
	foreach my $it ([ '', '', 'no release' ], [ '0.9.0', '', 'none that the library works with' ], [ $this, "table idemq.events is gone\n", 'one that it does work with' ],
		[ "$this-rc.1", '', 'a pre-release of the oldest version that it works with' ],
		[ "$this $this-rc.1 $this--$later-rc.2", "table idemq.events is gone\n", 'a release is later than its pre-release; updates do not count' ],
		[ "$this $later-rc.10 $later-rc.2", "table idemq.stages is gone\ntable idemq.events is gone\n", 'a later pre-release, rc.10 after rc.2' ])
	{
		my ($released, $said, $name) = @$it;
		my $file = join '', map { " sql/idemq--$_.sql" } split / /, $released;

		$makefile =~ s/^RELEASED =.*$/RELEASED =$file/m or die;
		unlink "$tree/Makefile";
		append_to_file("$tree/Makefile", $makefile);
		is($lint->(), $said, $name);
	}
	system_or_bail('sed', '-i', "s/^default_version = .*/default_version = '$this-rc.1'/", "$tree/idemq.control");
	like($lint->(), qr/^idemq\.control: oldest_sql is later than default_version/, 'a pre-release whose oldest SQL objects are those of its release');

	# The version after this one, as lint will look at it: by the rules, and with one of them broken.
	my ($next) = next_version();
	my $tables = slurp_file("$next/sql/parts/20_tables.sql");
	my $lint_next = sub { return script('cd "$1" && python3 "$2"', $next, "$source/script/check/kept") };
	is($lint_next->(), '', 'the next version keeps what this one has');
	$tables =~ s/(\tmax_trace +int)/$1 NOT NULL/ or die;
	unlink "$next/sql/parts/20_tables.sql";
	append_to_file("$next/sql/parts/20_tables.sql", $tables);
	is($lint_next->(), "table idemq.queues: column max_trace is new, and may not be NULL\n", 'and does not with a column that may not be NULL');
}

# Packages of a pre-release sort before those of its release.
is(script('cd "$1"; for kind in debian python; do for v in 1.2.0 1.2.0-rc.1 1.2.0-beta2; do script/release/version-of $kind $v; done; done', $source),
	"1.2.0\n1.2.0~rc.1\n1.2.0~beta2\n1.2.0\n1.2.0rc1\n1.2.0b2\n", 'versions as Debian and Python spell them');

# The Python package is built with the standard library alone: -S, without setuptools and whatever else is installed.
{
	system_or_bail('mkdir', "$tmp/wheels");
	my $build = 'import sys; sys.dont_write_bytecode = True; sys.path.insert(0, sys.argv[1]); import build_backend as b; print(b.build_wheel(sys.argv[2]), b.build_sdist(sys.argv[2]))';
	my $list = 'import sys, zipfile, tarfile; print(*sorted(zipfile.ZipFile(sys.argv[1]).namelist()), *sorted(tarfile.open(sys.argv[2]).getnames()), sep="\n")';
	my ($version) = slurp_file("$source/idemq.control") =~ /^default_version = '(.*)'/m;
	my @made = ("idemq-$version-py3-none-any.whl", "idemq-$version.tar.gz");

	is(script('/usr/bin/python3 -I -S -c "$1" "$2" "$3"', $build, "$source/clients/python", "$tmp/wheels"), "@made\n", 'a wheel and a source distribution');
	my $names = script('/usr/bin/python3 -I -S -c "$1" "$2" "$3"', $list, map { "$tmp/wheels/$_" } @made);
	my @sources = sort map { s{.*/clients/python/}{}r } map { glob "$source/clients/python/idemq/$_*.{py,sql,typed}" } '', '*/', '*/*/', '*/*/*/';
	is(join(' ', sort grep { m{^idemq/} } split /\n/, $names), "@sources", 'the wheel has all of the package');
	like($names, qr{^idemq-\Q$version\E\.dist-info/\Q$_\E$}m, "and $_") foreach qw(METADATA RECORD WHEEL entry_points.txt LICENSE);
	like($names, qr{^idemq-\Q$version\E/\Q$_\E$}m, "the source distribution has $_") foreach qw(pyproject.toml build_backend.py README.md idemq/relay.py PKG-INFO);
	script('/usr/bin/python3 -I -S -c "$1" "$2" "$3"', $build, "$source/clients/python", "$tmp");
	is(slurp_file("$tmp/$_"), slurp_file("$tmp/wheels/$_"), "$_: the same sources give the same file") foreach @made;
	like(script('unzip -p "$1" "*/METADATA" 2>/dev/null || /usr/bin/python3 -c "import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); print(z.read([n for n in z.namelist() if n.endswith(\'METADATA\')][0]).decode())" "$1"', "$tmp/wheels/$made[0]"),
		qr/^Name: idemq\nVersion: \Q$version\E\n.*^Requires-Python: >= 3\.9\nRequires-Dist: psycopg >= 3\.1\.7$/ms, 'its metadata is that of pyproject.toml');
}

# A client that leaves out an argument is named, also where the call stands behind a comma.
{
	my $tree = "$tmp/callers";
	my $check = sub { return script('cd "$1" && python3 "$2" clients', $tree, "$source/script/check/callers") };

	system_or_bail('mkdir', $tree);
	system_or_bail('cp', '-r', (map { "$source/$_" } qw(sql cluster clients idemq-work)), $tree);
	is($check->(), '', 'the clients pass every argument');
	script('cd "$1" && sed -i "s/, end_waits => [$][0-9]*::int\[\]//" clients/node/lib/statements.js idemq-work/report_worker.c', $tree);
	is($check->(), "clients/node/lib/statements.js: idemq.report_worker without end_waits\nidemq-work/report_worker.c: idemq.report_worker without end_waits\n",
		'what Node and idemq-work leave out');
}

# Modules of the clients import each other in one direction.
{
	my $tree = "$tmp/imports";
	my ($python, $node) = ("$tree/clients/python/idemq", "$tree/clients/node/lib");
	my $check = sub { return script('cd "$1" && python3 "$2" || true', $tree, "$source/script/check/imports") };
	my $said = sub { return join '', map { "$_\n" } @_ };

	system_or_bail('mkdir', '-p', $python, $node);
	append_to_file("$python/__init__.py", "from ._a import A\n");
	append_to_file("$python/_a.py", "from . import _b\n");
	append_to_file("$python/_b.py", "import json\n");
	append_to_file("$node/a.js", "import { b } from './b.js';\n");
	append_to_file("$node/b.js", "/** \@typedef {import('./a.js').A} A */\n");
	is($check->(), '', 'no cycle: types of JavaScript are in comments');
	append_to_file("$python/_b.py", "if TYPE_CHECKING:\n    from ._a import A\n");
	append_to_file("$node/b.js", "export { a } from './a.js';\n");
	is($check->(), $said->('clients/python/idemq: a cycle: _a.py -> _b.py -> _a.py', 'clients/node/lib: a cycle: a.js -> b.js -> a.js'),
		'a cycle by a type of Python, and one of JavaScript');
	append_to_file("$python/_b.py", "def b():\n    import json\n");
	like($check->(), qr{^clients/python/idemq/_b\.py:5: an import in a function\n}, 'an import in a function');
}

# The English of pages and messages: a planted sentence exceeds its directory's ceiling, and a ceiling only falls.
{
	my $tree = "$tmp/english";
	my $run = sub { return script('cd "$1" && python3 "$2" $3', $tree, "$source/script/check/english", $_[0] // '') };
	my $page = "$tree/doc/page.md";
	my $message = "$tree/src/a.c";

	system_or_bail('mkdir', '-p', "$tree/doc", "$tree/src", "$tree/script/check");
	append_to_file($page, "# A page\n\nA worker claims a job.\n\n```sql\nSELECT 'so many';  -- anew\n```\n");
	append_to_file($message, qq{\tereport(ERROR, errmsg("queue \\"%s\\" does not exist", name),\n\t\t\terrhint("Create the queue."));\n\t/* so many */\n});
	is($run->(), '', 'good sentences, and code and comments, are no offence');
	append_to_file($page, "Then it begins anew, and goes on for ever.\n");
	like($run->(), qr{^doc: 2 phrases .* permits 0\..* \(2 too many\).*\n  doc/page\.md:8: … .*anew.*\n  doc/page\.md:8: … .*for ever.* \(write fix, again}, 'a planted sentence is named, with its line and advice');
	is($run->('--lower') . $run->(), '', 'the first ceilings are the counts of the day');
	is(slurp_file("$tree/script/check/english.ceilings") =~ s/^#.*\n//r, "2 doc\n", 'by directory');
	append_to_file($message, qq{\t\terrhint("%d rows are to be deleted.", n));\n});
	like($run->(), qr{^src: 1 phrases .* permits 0\..*\n  src/a\.c:4: … .*rows are to be.*must}, 'a directory without a ceiling permits none; messages count');
	$run->('--lower');
	is(slurp_file("$tree/script/check/english.ceilings") =~ s/^#.*\n//r, "2 doc\n", 'no ceiling is raised');
	unlink $page or die "$page: $!";
	$run->('--lower');
	is(slurp_file("$tree/script/check/english.ceilings") =~ s/^#.*\n//r, '', 'a ceiling falls with the count');
	append_to_file($page, "It begins anew.\n");
	like($run->(), qr{^doc: 1 phrases }, 'and stays there');
}

done_testing();
