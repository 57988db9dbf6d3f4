//! A restarted coordinator resumes the round with the same offer, the accepted commits and the same
//! receipts.

use florin_protocol::{Canonical, TaskPhase};

use crate::support::process::until;
use crate::support::sender::Sender;
use crate::support::{On, Process, TestMarket, TestPlan, on_both};

on_both!(a_restart_continues_the_round);

fn a_restart_continues_the_round(on: On) {
    let mut plan = TestPlan::honest(on, 1);
    plan.participants.truncate(2);
    plan.others.push("slow");
    let mut market = TestMarket::open(plan);
    let task = market.publish();
    let mut all = market.start_all(task);
    let slow = Sender::join(&market, task, "slow", "10");

    // Two participants have committed and the third has not: the round is open.
    until("two commits", || (market.view(task).committed == 2).then_some(()));
    let before = market.view(task);
    market.restart_coordinator();
    let after = market.view(task);
    assert_eq!(
        (after.phase, after.committed, after.round),
        (TaskPhase::Committing, 2, before.round)
    );
    let offer = before.offer.unwrap();
    assert_eq!(after.offer.as_ref(), Some(&offer), "the offer has the same bytes and signature");

    // The third participant commits, and uploads to a coordinator that was killed again in between.
    let base = market.client().blob(offer.body.base_model, 1 << 20).unwrap();
    let values = florin_work::decode_model(&after.spec, &base).unwrap();
    let bytes = florin_work::encode_parameters(&after.spec, &vec![0.0; values.len()]);
    let header = slow.header(&offer.body, &bytes);
    assert_eq!(slow.send_commit(&slow.commit(&header)), "OK");
    until("two uploads", || (market.view(task).revealed == 2).then_some(()));
    market.restart_coordinator();
    assert_eq!(market.view(task).revealed, 2, "acknowledged updates survive");
    let signed = slow.node.sign(header);
    let receipt = market.client().upload(&signed, &bytes).unwrap();
    market.restart_coordinator();
    if let Ok(again) = market.client().upload(&signed, &bytes) {
        assert_eq!(again, receipt, "the same update has the same receipt");
    }

    all.iter_mut().for_each(Process::finish);
    let report = market.report(task, 1);
    assert_eq!(report.offer, offer.body.digest());
    assert_eq!(report.entries.len(), 3, "no update is lost: {:?}", report.missing);
}
