//! The orders of a coordinator, read whole once and then by their changes.

use std::collections::{BTreeMap, BTreeSet};

use florin_compute::{OrderChanges, OrderView};
use florin_protocol::Digest;

use super::{Client, ClientError};

/// Most orders of a list; coordinators remember a quarter of them.
const LISTED_MAX: usize = 4_096;

/// All orders that a coordinator remembers, the newest first.
#[derive(Debug, Default)]
pub(crate) struct OrderList {
    run: u64,
    last: u64,
    views: Vec<OrderView>,
}

impl OrderList {
    /// Reads the changes since the last reading.
    ///
    /// # Errors
    /// Those of [`Client::orders`]. The list stays as it is.
    pub(crate) fn read(&mut self, client: &Client) -> Result<(), ClientError> {
        let changes = client.order_changes(self.run, self.last)?;
        self.apply(changes);
        Ok(())
    }

    fn apply(&mut self, changes: OrderChanges) {
        let OrderChanges { run, last, is_whole, orders, forgotten } = changes;
        (self.run, self.last) = (run, last);
        if is_whole {
            self.views = orders;
            return;
        }
        let forgotten: BTreeSet<Digest> = forgotten.into_iter().collect();
        self.views.retain(|view| !forgotten.contains(&view.id));
        let at: BTreeMap<Digest, usize> =
            self.views.iter().enumerate().map(|(at, view)| (view.id, at)).collect();
        let mut new = Vec::new();
        for changed in orders {
            match at.get(&changed.id).and_then(|at| self.views.get_mut(*at)) {
                Some(view) => *view = changed,
                None => new.push(changed),
            }
        }
        // Unknown orders came after all others.
        new.append(&mut self.views);
        new.truncate(LISTED_MAX);
        self.views = new;
    }

    /// The orders.
    pub(crate) fn views(&self) -> &[OrderView] {
        &self.views
    }
}

#[cfg(test)]
mod tests {
    use florin_compute::{ComputeOrder, OrderMoney, Phase};
    use florin_protocol::Timestamp;

    use super::*;

    fn view(number: u8, records: u32) -> OrderView {
        OrderView {
            id: Digest([number; 32]),
            order: ComputeOrder::example(),
            missing: Vec::new(),
            opened: None,
            refused: None,
            beacon: Digest([0; 32]),
            records,
            phase: Phase::Bidding,
            deadline: Timestamp(0),
            provider: None,
            delivered: 0,
            outcome: None,
            money: OrderMoney::Locked,
        }
    }

    fn read(list: &mut OrderList, is_whole: bool, orders: &[(u8, u32)], forgotten: &[u8]) {
        let orders = orders.iter().map(|(number, records)| view(*number, *records)).collect();
        let forgotten = forgotten.iter().map(|number| Digest([*number; 32])).collect();
        list.apply(OrderChanges { run: 5, last: 9, is_whole, orders, forgotten });
    }

    #[test]
    fn changes_replace_precede_and_remove_orders() {
        let mut list = OrderList::default();
        let found = |list: &OrderList| -> Vec<(u8, u32)> {
            list.views().iter().map(|view| (view.id.0[0], view.records)).collect()
        };
        read(&mut list, true, &[(3, 1), (2, 1), (1, 1)], &[]);
        assert_eq!(found(&list), [(3, 1), (2, 1), (1, 1)]);
        read(&mut list, false, &[(5, 0), (4, 0), (2, 7)], &[3, 9]);
        assert_eq!(found(&list), [(5, 0), (4, 0), (2, 7), (1, 1)]);
        read(&mut list, false, &[], &[]);
        assert_eq!((found(&list).len(), list.run, list.last), (4, 5, 9));
        // The coordinator started again.
        read(&mut list, true, &[(4, 2)], &[]);
        assert_eq!(found(&list), [(4, 2)]);
    }
}
