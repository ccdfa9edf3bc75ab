# config/environment.rb of the application that rails.pl makes: Rails without a web server, and its jobs.
require "logger"
require "rails"
require "active_record/railtie"
require "active_job/railtie"
require_relative "../lib/active_job/queue_adapters/idemq_adapter"

class Shop < Rails::Application
  config.load_defaults [Rails.version.to_f, 7.2].min
  config.root = File.expand_path("..", __dir__)
  config.eager_load = false
  config.secret_key_base = "none"
  config.logger = Logger.new($stderr)
  config.log_level = :fatal
  config.active_job.queue_adapter = :idemq
end
Rails.application.initialize!

class Mark < ActiveRecord::Base
end

class MarkJob < ActiveJob::Base
  def perform(what)
    puts "{ \"this\": \"is no reply\" }"
    Mark.create!(what: what.is_a?(Mark) ? "mark #{what.id}" : what)
  end
end

# Dies after its changes were committed, in the first attempt.
class DyingJob < ActiveJob::Base
  def perform(what, safe)
    write = -> { Mark.create!(what: what) }
    safe ? Idemq.complete(&write) : write.call
    Process.kill("KILL", $$) if Idemq.attempt["attempt"] == 1
  end
end

class RetriedJob < ActiveJob::Base
  retry_on ArgumentError, wait: 0, attempts: 3

  def perform(succeeds_at)
    Mark.create!(what: "execution #{executions} of #{job_id}")
    raise ArgumentError, "execution #{executions}" if executions < succeeds_at
  end
end

class DiscardedJob < ActiveJob::Base
  discard_on ArgumentError

  def perform
    raise ArgumentError
  end
end

class FailingJob < ActiveJob::Base
  def perform
    raise "it fails: \xff"
  end
end

# Fails after it has been completed.
class LateJob < ActiveJob::Base
  def perform
    Idemq.complete { Mark.create!(what: "late") }
    raise "too late"
  end
end
