// Checked by tsc, never run: what the queues of the examples hold.

import 'idemq';

declare module 'idemq' {
  interface Queues {
    charges: { payload: { order: number; amount: number } };
    mail: { payload: { order?: number; paid?: number } };
    events: { payload: { id: string; amount: number; account: string } };
    orders: { kinds: { order: { payload: { no: number } }; payment: { payload: { no: number } } } };
    reports: { payload: object };
  }
}
