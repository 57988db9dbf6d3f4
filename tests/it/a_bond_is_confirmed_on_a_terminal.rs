//! On a terminal, a participant is asked before it bonds, and bonds nothing unless it agrees.
#![cfg(unix)]

use std::process::{Child, Command, Stdio};

use florin_protocol::{Amount, TaskId, TaskPhase};

use crate::support::process::{command, florin};
use crate::support::{On, TestMarket, TestPlan};

/// Runs a program on a terminal of its own, and answers its question.
const TERMINAL: &str = r#"
import os, pty, sys
answer, program = sys.argv[1].encode(), sys.argv[2:]
child, terminal = pty.fork()
if child == 0:
    os.execv(program[0], program)
shown, asked = b"", False
while True:
    try:
        part = os.read(terminal, 4096)
    except OSError:
        break
    if not part:
        break
    shown += part
    if not asked and b"[y/N]" in shown:
        os.write(terminal, answer)
        asked = True
sys.stdout.buffer.write(shown)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"#;

/// A task of one round for one participant.
fn open() -> (TestMarket, TaskId) {
    let mut plan = TestPlan::honest(On::Embedded, 1);
    plan.provider = false;
    plan.participants.truncate(1);
    plan.target = 1;
    let market = TestMarket::open(plan);
    let task = market.publish();
    (market, task)
}

fn call_without_limit(market: &TestMarket, task: TaskId) -> Vec<String> {
    let mut call = market.participant_call(&market.url, task, "ann");
    let at = call.iter().position(|argument| argument == "--max-bond").unwrap();
    call.drain(at..at + 2);
    call.retain(|argument| argument != "--trust-coordinator");
    call
}

/// The participant without `--max-bond`, on a terminal.
fn start(market: &TestMarket, task: TaskId, answer: &str) -> Child {
    let program = command(&call_without_limit(market, task));
    let mut python = Command::new("python3");
    python.args(["-c", TERMINAL, answer]).arg(program.get_program()).args(program.get_args());
    python.env_clear().envs(
        std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("FLORIN_")),
    );
    python.env("NO_COLOR", "1").stdin(Stdio::null()).stdout(Stdio::piped());
    python.spawn().expect("python3 must start")
}

fn finish(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

fn bonded(market: &TestMarket, task: TaskId) -> Amount {
    market.ledger().bond_of(task, market.account("ann")).unwrap().amount
}

#[test]
fn every_answer_but_yes_bonds_nothing() {
    let (market, task) = open();
    // Ctrl-D ends the input without an answer.
    for answer in ["n\n", "\n", "yesterday\n", "\u{4}"] {
        let (code, shown) = finish(start(&market, task, answer));
        assert_eq!(code, Some(1), "{answer:?}: {shown}");
        let arbiter = market.account("coordinator");
        let question = format!(
            "Deposit a bond of 6.0000 FLN under arbiter {arbiter} (the coordinator) and take part? \
             [y/N]"
        );
        assert!(shown.contains(&question), "{shown}");
        let (offer, question) = (shown.find("Risk: a bond of"), shown.find("[y/N]"));
        assert!(offer.is_some() && offer < question, "the offer precedes the question: {shown}");
        assert!(shown.contains("error[DECLINED]"), "{answer:?}: {shown}");
        assert_eq!(bonded(&market, task), Amount::ZERO, "{answer:?}");
    }
}

#[test]
fn a_participant_that_agrees_bonds_and_takes_part() {
    let (market, task) = open();
    let (code, shown) = finish(start(&market, task, "y\n"));
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("bonded 6 FLN"), "{shown}");
    assert_eq!(market.view(task).phase, TaskPhase::Done);
    assert_eq!(market.report(task, 1).entries.len(), 1);
}

#[test]
fn without_a_terminal_a_limit_and_an_accepted_arbiter_are_required() {
    let (market, task) = open();
    let mut call = call_without_limit(&market, task);
    florin(&call).refused(2, "MAX_BOND_REQUIRED");
    call.extend(["--max-bond", "9"].map(str::to_owned));
    let output = florin(&call);
    assert!(output.err.contains("--trust-coordinator"), "{output:?}");
    output.refused(1, "ARBITER_NOT_ACCEPTED");
    assert_eq!(bonded(&market, task), Amount::ZERO);
}
