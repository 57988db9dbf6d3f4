//! A participant trains with its own program in a sandbox, next to others that use the engine: the
//! market values and pays all alike.

use crate::support::{On, Process, TestMarket, TestPlan, florin};

fn example() -> String {
    format!("{}/examples/trainer", env!("CARGO_MANIFEST_DIR"))
}

/// Whether a sandbox can be created here, by the code of the refusal if not.
fn is_sandbox_missing(call: &[String]) -> bool {
    let output = florin(call);
    let is_missing = output.err.contains("SANDBOX_MISSING");
    if is_missing {
        assert_eq!(output.code, 2, "{}", output.err);
        assert!(output.err.contains("--unsandboxed"), "{}", output.err);
        eprintln!("SKIPPED: {}", output.err);
    }
    is_missing
}

#[test]
fn a_program_in_a_sandbox_is_paid_like_the_engine() {
    let mut plan = TestPlan::honest(On::Embedded, 1);
    plan.provider = false;
    plan.target = 2;
    let market = TestMarket::open(plan);
    let task = market.publish();
    let mut call = market.participant_call(&market.url, task, "ann");
    call.extend(["--trainer".to_owned(), example()]);
    let refused = florin(&call).refused(2, "TRAINER_NOT_ACCEPTED");
    let digest = refused.err.split_whitespace().last().unwrap().trim_matches(['"', '.']).to_owned();
    call.extend(["--accept-trainer".to_owned(), digest]);
    // It is refused for its pay after the sandbox was tried.
    let probe = [&call[..], &["--min-pay".to_owned(), "999".to_owned()]].concat();
    if is_sandbox_missing(&probe) {
        return;
    }
    let mut ann = Process::start(market.folder(), "ann", &call);
    let mut ben = market.participant(task, "ben");
    ann.finish();
    ben.finish();
    let report = market.report(task, 1);
    let (ann, ben) = (market.account("ann"), market.account("ben"));
    let paid = |account| report.account_totals[&account].data;
    assert!(!paid(ann).is_zero(), "the program's update improves the model");
    assert!(!paid(ben).is_zero());
    market.run_command(&["audit", &task.to_string()]).expect(0);
}

/// The refusals that need no sandbox.
#[test]
fn a_trainer_without_an_accepted_program_is_refused() {
    let market = TestMarket::open(TestPlan::honest(On::Embedded, 1));
    let task = market.publish();
    let call = |more: &[&str]| {
        let mut call = market.participant_call(&market.url, task, "ann");
        call.extend(more.iter().map(|word| (*word).to_owned()));
        call
    };
    let folder = market.folder().display().to_string();
    florin(&call(&["--trainer", &folder])).refused(2, "INVALID_TRAINER");
    let other = "00".repeat(32);
    let wrong = call(&["--trainer", &example(), "--unsandboxed", "--accept-trainer", &other]);
    florin(&wrong).refused(2, "TRAINER_NOT_ACCEPTED");
}
