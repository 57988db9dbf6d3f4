//! Parallel map over independent tasks; the results keep the order of the tasks.

use std::sync::Mutex;
use std::thread;

/// Applies `work` to every task on up to `threads` threads and returns the results in the order of
/// the tasks. Each thread has its own state, made by `state`.
pub fn parallel_map<T: Send, R: Send, S>(
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
            // A worker that panics while it holds the lock leaves the iterator intact.
            let next = waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
            let Some((at, task)) = next else { return done };
            done.push((at, work(&mut own, task)));
        }
    };
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let handles: Vec<_> = (1..workers).map(|_| scope.spawn(worker)).collect();
        // This thread works too: otherwise it would only wait.
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
    fn results_keep_task_order_on_any_number_of_threads() {
        for threads in [0, 1, 2, 9] {
            let squares =
                super::parallel_map(threads, (0..50).collect(), || (), |(), n: u64| n * n);
            assert_eq!(squares, (0..50).map(|n| n * n).collect::<Vec<_>>());
        }
    }
}
