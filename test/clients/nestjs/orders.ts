// The application of doc/usage/nestjs.md.
import { Injectable, Module, type OnApplicationShutdown } from '@nestjs/common';
import type { HandlerClient, Job } from 'idemq';
import { IdemqModule, InjectQueue, Process, Processor, Queue } from 'idemq/nestjs';
import pg from 'pg';

@Injectable()
export class Database extends pg.Pool implements OnApplicationShutdown {
  constructor() {
    super({ connectionString: process.env.DSN });
  }
  async onApplicationShutdown() {
    await this.end();
  }
}

@Injectable()
export class Orders {
  constructor(private readonly db: Database, @InjectQueue('mail') private readonly mail: Queue) {}

  async place(order: number) {
    const client = await this.db.connect();
    try {
      await client.query('BEGIN');
      await client.query('INSERT INTO orders (id) VALUES ($1)', [order]);
      await this.mail.enqueue(client, { order }, { kind: 'receipt', key: `order-${order}` });
      await client.query('COMMIT');
    } catch (error) {
      await client.query('ROLLBACK');
      throw error;
    } finally {
      client.release();
    }
  }
}

@Processor('mail', { concurrency: 4 })
export class MailProcessor {
  @Process('receipt')
  async receipt(job: Job<{ order: number }>, db: HandlerClient) {
    await db.query('INSERT INTO receipts (order_id) VALUES ($1)', [job.payload.order]); // committed with the job
    return { sent: true };
  }

  @Process('reminder', { timeout: 60, backoff: ['1 min', '1 h'] })
  async reminder(job: Job<{ order: number }>, db: HandlerClient) {
    await db.query('UPDATE orders SET reminded = true WHERE id = $1', [job.payload.order]);
  }
}

@Module({
  imports: [IdemqModule.forFeature('mail')],
  providers: [Database, Orders, MailProcessor],
  exports: [Database, Orders],
})
export class OrdersModule {}
