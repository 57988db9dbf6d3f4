//! How the coordinator of the tests may lie.

/// How the coordinator lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// Receipts are signed by somebody else.
    ForgedReceipt,
    /// Receipts are for another update.
    OtherReceipt,
    /// The report leaves a receipted update out.
    LostUpdate,
    /// The report pays more than the scores earn.
    WrongPayout,
    /// The report states a better score, and pays for it.
    WrongScore,
    /// Offers promise less than the task has left for the round.
    SmallPool,
    /// The report declares more rows than the sender did.
    MoreRows,
    /// Claims are proven by the report before the last one.
    OldProof,
    /// The second offer begins with another model.
    WrongBase,
    /// Blobs have a flipped byte.
    WrongBytes,
    /// Every request is answered with "later".
    Away,
    /// Whoever asks for work and would wait for it is cut off without an answer.
    CutPolls,
    /// Settlements are not posted.
    NeverPosted,
    /// Settlements are posted with another report's digest.
    OtherReport,
    /// A settlement is posted for a round that was never held.
    NoReport,
    /// The paid record states another result than the report.
    OtherResult,
    /// The work of round 1 is paid again in every round.
    SameRecord,
    /// A row that is shown has another feature than the one that was committed to.
    ForgedRow,
    /// Rounds after the first are judged by the first one's rows.
    SameRows,
    /// The report states another seed, and the rows that it draws.
    OtherSeed,
    /// The rows are not shown to anybody.
    HiddenRows,
    /// The work is paid to wallet 6, which never pledged anything.
    Accomplice,
    /// No lie: the second round comes to nothing.
    Abandons,
    /// No lie: the first two enrolments come before the coordinator's node has seen the bond.
    NodeBehind,
    /// No lie: the coordinator's clock shows an hour more than before.
    ClockAhead,
}
