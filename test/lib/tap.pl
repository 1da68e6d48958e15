# Runs TAP files and counts their assertions: tap.pl RESULT_FILE TEST...
# Writes "passed failed" on the first line of RESULT_FILE, then the name of each file that failed.
# A file that dies, or runs fewer assertions than it planned, counts as one failure more.
use strict;
use warnings;
use TAP::Harness;

my ($result_file, @tests) = @ARGV;
my $harness = TAP::Harness->new({
	timer => 1,
	color => -t STDOUT,
	verbosity => $ENV{TEST_VERBOSE} ? 1 : 0,
	jobs => $ENV{TAP_JOBS} || 1,
});
my $all = $harness->runtests(@tests);

my ($passed, $failed, @failed_files) = (0, 0);
for my $file ($all->descriptions)
{
	my ($parser) = $all->parsers($file);
	my $here = () = $parser->failed;
	$here++ if !$here && $parser->has_problems;
	$here++ if !$here && ($parser->exit || $parser->wait);
	$passed += () = $parser->passed;
	$failed += $here;
	push @failed_files, $file if $here;
}

open my $out, '>', $result_file or die "$result_file: $!";
print $out join("\n", "$passed $failed", @failed_files), "\n";
close $out or die "$result_file: $!";
exit($failed ? 1 : 0);
