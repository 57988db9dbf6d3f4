//! Independent pieces of work on several threads, their results in order.

use std::sync::Mutex;
use std::thread;

/// Does `work` on every task on up to `threads` threads, each with a state of its own, and gives the results in the
/// order of the tasks.
pub fn each<T: Send, R: Send, S>(
    threads: usize,
    tasks: Vec<T>,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, T) -> R + Sync,
) -> Vec<R> {
    let workers = threads.min(tasks.len());
    if workers <= 1 {
        let mut own = state();
        return tasks.into_iter().map(|task| work(&mut own, task)).collect();
    }
    let waiting = Mutex::new(tasks.into_iter().enumerate());
    let worker = || {
        let (mut own, mut done) = (state(), Vec::new());
        loop {
            // A worker that panicked while it held the lock left the iterator whole.
            let next = waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
            let Some((at, task)) = next else { return done };
            done.push((at, work(&mut own, task)));
        }
    };
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let handles: Vec<_> = (1..workers).map(|_| scope.spawn(worker)).collect();
        // This thread is one of them: it would only wait.
        let mut done = worker();
        for handle in handles {
            done.extend(handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn results_come_in_the_order_of_the_tasks_whatever_the_threads() {
        for threads in [0, 1, 2, 9] {
            let squares = super::each(threads, (0..50).collect(), || (), |(), n: u64| n * n);
            assert_eq!(squares, (0..50).map(|n| n * n).collect::<Vec<_>>());
        }
    }
}
