//! Progress of a command that may take more than two seconds: one line on the terminal, which is
//! removed at the end. Into a pipe nothing is printed.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Refresh interval of the line.
const REFRESH: Duration = Duration::from_millis(120);

/// A progress bar that redraws itself; hidden if `target` is no terminal.
///
/// # Panics
/// `template` is no template of indicatif.
#[must_use]
pub fn progress_bar(target: ProgressDrawTarget, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("a constant template");
    let bar = ProgressBar::with_draw_target(None, target);
    bar.set_style(style.progress_chars("━━─"));
    if !bar.is_hidden() {
        bar.enable_steady_tick(REFRESH);
    }
    bar
}

/// A line with the current step and the elapsed time; dropping it removes it.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Shows a step on standard error, if it is a terminal.
    pub(crate) fn start(step: impl Into<String>) -> Self {
        Self::on(ProgressDrawTarget::stderr(), step)
    }

    /// Shows a step while `work` runs.
    pub(crate) fn during<T>(step: impl Into<String>, work: impl FnOnce() -> T) -> T {
        let _shown = Self::start(step);
        work()
    }

    fn on(target: ProgressDrawTarget, step: impl Into<String>) -> Self {
        let bar = progress_bar(target, "{spinner} {msg} ({elapsed})").with_message(step.into());
        Self { bar }
    }

    /// Shows the next step.
    pub(crate) fn step(&self, step: impl Into<String>) {
        self.bar.set_message(step.into());
    }

    /// Removes the line while `print` prints.
    pub(crate) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use indicatif::TermLike;

    use super::*;

    /// A terminal that records what is written to it.
    #[derive(Debug, Clone, Default)]
    struct Recorder(Arc<Mutex<String>>);

    impl Recorder {
        fn write(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }
    }

    impl TermLike for Recorder {
        fn width(&self) -> u16 {
            80
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.write(text)
        }
        fn clear_line(&self) -> io::Result<()> {
            self.write("<clear>")
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_step_is_shown_with_its_time_and_cleared_at_the_end() {
        let screen = Recorder::default();
        let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
        let progress = Progress::on(target, "reading");
        progress.bar.force_draw();
        progress.step("checking");
        progress.bar.force_draw();
        drop(progress);
        let written = screen.0.lock().unwrap().clone();
        for part in ["reading (0s)", "checking (0s)"] {
            assert!(written.contains(part), "{part:?} in {written:?}");
        }
        assert!(written.ends_with("<clear>"), "{written:?}");
    }
}
