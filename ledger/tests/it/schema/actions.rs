//! The sentence that a wallet displays and signs for each action, as a template that is generated
//! from [`Action::summary`].

use florin_ledger::{Action, Claim, MemberShare, Objection, Settlement, Slash, Terms};
use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{
    Address, Amount, Digest, LedgerReceipt, Micro, RoundNumber, SettlementId, TaskId, TaskSpec,
    WalletSignature,
};
use serde_json::{Value, json};

/// Every action with the condition of its sentence, in the order of the variants.
pub(crate) fn examples() -> Vec<(Action, &'static str)> {
    let task = TaskId([0xab; 32]);
    let (to, account) = (Address([0x17; 20]), Address([0x29; 20]));
    let amount: Amount = "12.000000000000000345".parse().unwrap();
    let payout = SettlementId([0xcd; 32]);
    let claim = |paid: &str, debited: &str| {
        let totals = ClaimTotals { paid: paid.parse().unwrap(), debited: debited.parse().unwrap() };
        let proof = vec![Digest([0x31; 32]), Digest([0x32; 32])];
        Action::Claim(Claim { task, account, totals, proof })
    };
    let slash =
        |stake| Action::Slash(Slash { task, account, stake, amount, evidence: Digest([0x44; 32]) });
    vec![
        (Action::Transfer { to, amount }, ""),
        (Action::OpenTask(Terms { task, ..Terms::from_spec(&TaskSpec::example()) }), ""),
        (Action::Bond { task, amount }, ""),
        (Action::Unbond { task }, ""),
        (Action::WithdrawBond { task }, ""),
        (Action::Stake { amount }, ""),
        (Action::Pledge { task }, ""),
        (Action::Unstake, ""),
        (Action::WithdrawStake, ""),
        (Action::Post(settlement(task, payout)), ""),
        (Action::Cancel { task, payout }, ""),
        (Action::Finalize { task }, ""),
        (claim("7.25", "0"), "debited is 0"),
        (claim("0", "2.5"), "paid is 0"),
        (claim("7.25", "2.5"), "neither is 0"),
        (Action::Close { task }, ""),
        (slash(false), "stake is false"),
        (slash(true), "stake is true"),
        (Action::AnnounceClose { task }, ""),
        (Action::Object(objection(task)), ""),
        (Action::SetSplit { task, members: members() }, ""),
    ]
}

fn members() -> Vec<MemberShare> {
    let shares = [(0x71, 299_999), (0x72, 700_001)];
    let share = |(byte, share)| MemberShare { member: Address([byte; 20]), share: Micro(share) };
    shares.map(share).to_vec()
}

pub(crate) fn objection(task: TaskId) -> Objection {
    let receipt = LedgerReceipt {
        task,
        round: RoundNumber(4_242),
        sender: Address([0x61; 20]),
        update: Digest([0x62; 32]),
    };
    Objection { receipt, signature: WalletSignature([0x63; 65]) }
}

pub(crate) fn settlement(task: TaskId, payout: SettlementId) -> Settlement {
    Settlement {
        task,
        payout,
        round: RoundNumber(4_242),
        report: Digest([0x51; 32]),
        previous_root: Digest([0x52; 32]),
        root: Digest([0x53; 32]),
        data_total: "90.5".parse().unwrap(),
        score_pay_total: "60".parse().unwrap(),
        infrastructure_total: "8.125".parse().unwrap(),
        improvement_total_nano: 700_000_000,
    }
}

/// The templates, one or more for each action.
pub(crate) fn actions() -> Vec<Value> {
    let template = |(action, when): (Action, &str)| {
        let (name, content) = match serde_json::to_value(&action).unwrap() {
            Value::Object(object) => object.into_iter().next().unwrap(),
            name => (name.as_str().unwrap().to_owned(), Value::Null),
        };
        let mut summary = action.summary();
        let mut leaves = Vec::new();
        collect_leaves(&content, "", &mut leaves);
        for (field, text) in leaves {
            let short: String = text.chars().take(8).collect();
            summary = match text.len() {
                _ if text.contains(' ') => summary.replace(&text, &format!("{{{field}}}")),
                64 => summary.replace(&short, &format!("{{{field}:8}}")),
                _ => replace_word(&summary, &text, &format!("{{{field}}}")),
            };
        }
        json!({"action": name, "when": when, "summary": summary})
    };
    examples().into_iter().map(template).collect()
}

/// The names and texts of all fields, also of those in a structure.
fn collect_leaves(value: &Value, name: &str, leaves: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                collect_leaves(value, name, leaves);
            }
        }
        Value::String(text) => leaves.push((name.to_owned(), text.clone())),
        // A list of structures is displayed as their fields, with commas between the structures.
        Value::Array(items) => {
            let texts = items.iter().filter_map(|item| {
                let mut fields = Vec::new();
                collect_leaves(item, "", &mut fields);
                let texts: Vec<String> = fields.into_iter().map(|(_, text)| text).collect();
                item.is_object().then(|| texts.join(" "))
            });
            let text = texts.collect::<Vec<_>>().join(", ");
            leaves.extend((!text.is_empty()).then(|| (name.to_owned(), text)));
        }
        Value::Number(number) => leaves.push((name.to_owned(), number.to_string())),
        _ => {}
    }
}

/// Replaces a word of a sentence, which a comma, a colon or an ellipsis may follow.
fn replace_word(sentence: &str, word: &str, by: &str) -> String {
    let replaced = sentence.split(' ').map(|each| {
        let rest = each.strip_prefix(word);
        match rest.filter(|rest| rest.is_empty() || [":", ",", "…"].contains(rest)) {
            Some(rest) => format!("{by}{rest}"),
            None => each.to_owned(),
        }
    });
    replaced.collect::<Vec<_>>().join(" ")
}
