//! `florin demo`.
mod children;
mod html;
mod outcome;
pub(crate) mod plan;
