#!/bin/sh
# idemq-work -d "$DSN" -q mail -j 4 --result -- ./mail.sh
exec curl -sS --fail --max-time 2 -H "Idempotency-Key: $IDEMQ_KEY" -H 'Content-Type: application/json' -d @- "$PROVIDER"
