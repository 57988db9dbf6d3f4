//! What may be said: ids, amounts, tasks, updates, reports, signatures, payout arithmetic.
