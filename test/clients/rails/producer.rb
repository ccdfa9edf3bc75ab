# Enqueues jobs, and prints a line "NAME VALUE" for each thing that rails.pl checks.
require_relative "config/environment"
Later = Time.at(4_102_444_800) # in 2100

def sqlstate
  yield
  "none"
rescue ActiveRecord::StatementInvalid => error
  error.cause.result.error_field(PG::Result::PG_DIAG_SQLSTATE)
end

ActiveRecord::Base.transaction do
  Mark.create!(what: "rolled back")
  puts "rolled_back #{MarkJob.perform_later("rolled back").provider_job_id}"
  raise ActiveRecord::Rollback
end
ActiveRecord::Base.transaction do
  MarkJob.perform_later("committed")
  ActiveRecord::Base.transaction(requires_new: true) do
    MarkJob.perform_later("rolled back to a savepoint")
    raise ActiveRecord::Rollback
  end
end
job = MarkJob.set(wait: 1.hour, priority: 2, queue: "other").perform_later("é")
puts "id #{job.provider_job_id}", "job_id #{job.job_id}"
MarkJob.set(wait_until: Later).perform_later("later")
MarkJob.perform_later(Mark.create!(what: "a record"))
puts "no_queue #{sqlstate { MarkJob.set(queue: "missing").perform_later("missing") }}"
puts "priority #{sqlstate { MarkJob.set(priority: 10).perform_later("priority") }}"
many = Array.new(1000) { |n| MarkJob.new("many #{n}") }
options = ->(n) { { queue: n.odd? ? "other" : "default", wait_until: (Later if n == 7) } }
ActiveRecord::Base.transaction do
  if ActiveJob.respond_to?(:perform_all_later)
    ActiveJob.perform_all_later(many.each_with_index.map { |job, n| job.set(options[n]) })
    puts "all #{many.all?(&:successfully_enqueued?)}"
  else
    many.each_with_index { |job, n| job.enqueue(options[n]) }
    puts "all true"
  end
end
puts "ids #{many.map(&:provider_job_id).uniq.size}"
many.first.enqueue # the same job_id again

DyingJob.perform_later("unsafe", false)
DyingJob.perform_later("safe", true)
puts "retried #{RetriedJob.perform_later(3).job_id}", "exhausted #{RetriedJob.perform_later(9).job_id}"
[DiscardedJob, FailingJob, LateJob].each(&:perform_later)

# Retries of an attempt that has lost its job, and of one that has it.
ActiveRecord::Base.connection.execute("SELECT idemq.create_queue('stale', lease => '1 h')")
job = RetriedJob.set(queue: "stale").perform_later(1)
claimed = ActiveRecord::Base.connection.exec_query("SELECT id::text, token::text, payload FROM idemq.claim('stale')").first
[[:stale, "1"], [:current, claimed["token"]], [:completed, claimed["token"]]].each do |name, token|
  Idemq.attempt = { "id" => claimed["id"], "token" => token, "payload" => JSON.parse(claimed["payload"]) }
  again = ActiveJob::Base.deserialize(Idemq.attempt["payload"])
  again.executions = 1
  puts "#{name} #{sqlstate { again.retry_job(wait: 1.hour) }}"
end
