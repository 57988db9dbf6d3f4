//! The checkable work of a round.
