//! The market as its users see it: the program itself, as real processes over loopback. Each file is one sentence.

mod tidy;
