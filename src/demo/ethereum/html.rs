//! The section about the Ethereum chain, if the ledger is on one.

use std::fmt::Write as _;

use florin_charts::escape_html;
use florin_ledger_ethereum::Deployment;

use super::on_chain::{OnChain, RoundSettlement};
use crate::show;

/// Number of printed characters of a digest.
const DIGITS: usize = 20;

/// The contracts, the checks, the settlements, and the gas by role.
pub(crate) fn section(html: &mut String, on_chain: &OnChain) {
    html.push_str("<section><h2>On the chain</h2>");
    checked(html, on_chain);
    contracts(html, &on_chain.deployment);
    settlements(html, &on_chain.settled);
    gas(html, on_chain);
    html.push_str("</section>");
}

fn checked(html: &mut String, on_chain: &OnChain) {
    let tone = |clean: bool| if clean { "good" } else { "bad" };
    let ((compared, differing), twin) = (on_chain.verified, &on_chain.replay);
    let _ = write!(
        html,
        "<p class=\"note\">The ledger was in contracts on Ethereum chain {}. All state was rebuilt \
         from their events: {} values compared, <b class=\"{}\">{} mismatches</b>. Every event was \
         replayed on an embedded ledger: {} events, {} balances compared, <b class=\"{}\">{} \
         mismatches</b>.</p>",
        on_chain.deployment.chain,
        compared,
        tone(differing == 0),
        differing,
        twin.events,
        twin.compared,
        tone(twin.differences.is_empty()),
        twin.differences.len(),
    );
    for line in &twin.differences {
        let _ = write!(html, "<p class=\"bad\">{}</p>", escape_html(line));
    }
}

fn contracts(html: &mut String, deployment: &Deployment) {
    let Deployment { token, market, registry, block, .. } = deployment;
    html.push_str("<div class=\"scroll\"><table><tr><th>contract</th><th>address</th></tr>");
    for (name, address) in [("token", token), ("market", market), ("registry", registry)] {
        let _ = write!(html, "<tr><td>{name}</td><td><code>{address}</code></td></tr>");
    }
    let _ = write!(
        html,
        "<tr><td>genesis</td><td><code>{}</code> <span class=\"soft\">digest of chain and \
         addresses; the market was deployed in block {block}</span></td></tr></table></div>",
        deployment.market().genesis
    );
}

fn settlements(html: &mut String, settled: &[RoundSettlement]) {
    html.push_str(
        "<div class=\"scroll\"><table><tr><th class=\"n\">round</th><th class=\"n\">posted in \
         block</th>\
         <th class=\"n\">final in block</th><th>payout</th><th>Merkle root of account totals</th>\
         </tr>",
    );
    let short = |digest: String| digest.chars().take(DIGITS).collect::<String>();
    for one in settled {
        let finalised = one.finalised.map_or("–".to_owned(), |block| block.to_string());
        let _ = write!(
            html,
            "<tr><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{finalised}</td>\
             <td><code>{}…</code></td><td><code>{}…</code></td></tr>",
            one.round,
            one.posted,
            short(one.payout.to_string()),
            short(one.root.to_string()),
        );
    }
    html.push_str("</table></div>");
}

fn gas(html: &mut String, on_chain: &OnChain) {
    html.push_str(
        "<div class=\"scroll\"><table><tr><th>gas by role</th><th class=\"n\">transactions</th>\
         <th class=\"n\">gas</th>\
         <th class=\"n\">at 1 gwei, ETH</th><th class=\"n\">paid here, ETH</th></tr>",
    );
    for (role, gas) in &on_chain.gas {
        let _ = write!(
            html,
            "<tr><td>{role}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td>\
             <td class=\"n\">{}</td></tr>",
            gas.transactions,
            show::thousands(&gas.gas.to_string()),
            show::ether(u128::from(gas.gas) * 1_000_000_000),
            show::ether(gas.wei),
        );
    }
    html.push_str("</table></div>");
}
