//! Deferred commands: an event and a query that are prepared now and sent once other work is done.
//! The thread that finishes the work sends them directly, which saves a wake-up of the request's
//! task.

use florin_protocol::{Rejection, Timestamp};
use tokio::sync::{mpsc, oneshot};

use super::turn::Asked;
use super::{Command, Host, Question, Written, stopping};
use florin_engine::{Engine, Event};

/// An event and a query after it, ready to send.
pub struct Later {
    commands: mpsc::Sender<Command>,
    both: Box<[Command; 2]>,
}

/// The future reply to a [`Later`].
pub struct Outcome<T> {
    written: oneshot::Receiver<Result<Written, Rejection>>,
    answer: oneshot::Receiver<T>,
}

impl Later {
    /// Sends both commands to the engine, from any thread and without blocking.
    ///
    /// # Errors
    /// Returns the unsent commands if the engine's channel is full or the engine has stopped.
    pub fn tell(self) -> Result<(), Self> {
        let Self { commands, both } = self;
        if let Ok(permits) = commands.try_reserve_many(both.len()) {
            for (permit, command) in permits.zip(*both) {
                permit.send(command);
            }
            return Ok(());
        }
        Err(Self { commands, both })
    }

    /// Sends both commands to the engine, waiting for capacity in its channel.
    ///
    /// # Errors
    /// [`ErrorCode::Internal`](florin_protocol::ErrorCode::Internal) when the engine has stopped.
    pub async fn tell_in_turn(self) -> Result<(), Rejection> {
        for command in *self.both {
            self.commands.send(command).await.map_err(|_| stopping())?;
        }
        Ok(())
    }
}

impl<T> Outcome<T> {
    /// Waits for the reply to the query, which the engine sends once the event is durable.
    ///
    /// # Errors
    /// As [`Host::write`]; also [`ErrorCode::Internal`](florin_protocol::ErrorCode::Internal) if the commands
    /// were dropped unsent.
    pub async fn comes(self) -> Result<T, Rejection> {
        let Self { mut written, answer } = self;
        // The query's reply arrives last, so waiting for it alone wakes this task once.
        let answer = answer.await;
        written.try_recv().map_err(|_| stopping())??;
        answer.map_err(|_| stopping())
    }
}

impl Host {
    /// Prepares an event, and a query that the engine answers once the event is durable, for
    /// another thread to send.
    #[must_use]
    pub fn later<T: Send + 'static>(
        &self,
        event: Event,
        question: impl FnOnce(&Engine, Timestamp) -> T + Send + 'static,
    ) -> (Later, Outcome<T>) {
        let (told, written) = oneshot::channel();
        let (asked, answer) = oneshot::channel();
        let question: Question = Box::new(move |engine, now| {
            // The receiver is gone if the client has disconnected.
            let _ = asked.send(question(engine, now));
        });
        let write = Command::Ask(Asked::Write(Box::new(event)), told);
        let commands = self.mailbox.commands.clone();
        // The engine answers queries after the events before them.
        let later = Later { commands, both: Box::new([write, Command::Read(question)]) };
        (later, Outcome { written, answer })
    }
}

#[cfg(test)]
mod tests {
    use florin_protocol::ErrorCode;

    use super::*;

    fn later(commands: &mpsc::Sender<Command>) -> Later {
        Later { commands: commands.clone(), both: Box::new([Command::Wake, Command::Stop]) }
    }

    #[tokio::test]
    async fn a_full_channel_takes_neither_command_until_it_has_capacity_for_both() {
        let (commands, mut queue) = mpsc::channel(3);
        assert!(later(&commands).tell().is_ok());
        let full = later(&commands).tell().expect_err("one slot is free, and two are needed");
        assert_eq!(queue.len(), 2);
        let waiting = tokio::spawn(full.tell_in_turn());
        for _ in 0..2 {
            assert!(matches!(queue.recv().await, Some(Command::Wake)));
            assert!(matches!(queue.recv().await, Some(Command::Stop)));
        }
        waiting.await.unwrap().unwrap();
        drop(queue);
        let stopped = later(&commands).tell().expect_err("the receiver is dropped");
        assert_eq!(stopped.tell_in_turn().await.unwrap_err().code, ErrorCode::Internal);
    }

    #[tokio::test]
    async fn a_rejected_event_is_an_error_even_if_the_query_was_answered() {
        let rejection =
            || Rejection::new(ErrorCode::ConflictingMessage, "another update was accepted");
        let outcome = |written: Option<Result<Written, Rejection>>, answer: Option<u8>| {
            let (send_written, receive_written) = oneshot::channel();
            let (send_answer, receive_answer) = oneshot::channel();
            written.map(|written| send_written.send(written).ok());
            answer.map(|answer| send_answer.send(answer).ok());
            Outcome { written: receive_written, answer: receive_answer }
        };
        let taken = Written { now: Timestamp(1), verdict: florin_engine::Verdict::New };
        assert_eq!(outcome(Some(Ok(taken)), Some(7)).comes().await, Ok(7));
        assert_eq!(outcome(Some(Err(rejection())), Some(7)).comes().await, Err(rejection()));
        assert_eq!(outcome(Some(Err(rejection())), None).comes().await, Err(rejection()));
        for (written, answer) in [(None, Some(7)), (None, None), (Some(Ok(taken)), None)] {
            let lost = outcome(written, answer).comes().await.unwrap_err();
            assert_eq!(lost.code, ErrorCode::Internal, "a reply is missing");
        }
    }
}
