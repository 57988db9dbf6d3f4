//! Deferred commands: an event and a query that are prepared now and sent once other work is done.
//! The thread that finishes the work sends them directly, which saves a wake-up of the request's
//! task.

use florin_protocol::{Rejection, Timestamp};
use tokio::sync::{mpsc, oneshot};

use super::batch::EngineRequest;
use super::{Command, EngineQuery, Host, WriteAck, stopping_rejection};
use florin_engine::{Engine, Event};

/// An event and a query after it, ready to send.
pub struct DeferredCommand {
    commands: mpsc::Sender<Command>,
    write_and_query: Box<[Command; 2]>,
}

/// The future reply to a [`DeferredCommand`].
pub struct DeferredReply<T> {
    written: oneshot::Receiver<Result<WriteAck, Rejection>>,
    answer: oneshot::Receiver<T>,
}

impl DeferredCommand {
    /// Sends both commands to the engine, from any thread and without blocking.
    ///
    /// # Errors
    /// Returns the unsent commands if the engine's channel is full or the engine has stopped.
    pub fn try_send(self) -> Result<(), Self> {
        let Self { commands, write_and_query: both } = self;
        if let Ok(permits) = commands.try_reserve_many(both.len()) {
            for (permit, command) in permits.zip(*both) {
                permit.send(command);
            }
            return Ok(());
        }
        Err(Self { commands, write_and_query: both })
    }

    /// Sends both commands to the engine, waiting for capacity in its channel.
    ///
    /// # Errors
    /// [`ErrorCode::Internal`](florin_protocol::ErrorCode::Internal) when the engine has stopped.
    pub async fn send(self) -> Result<(), Rejection> {
        for command in *self.write_and_query {
            self.commands.send(command).await.map_err(|_| stopping_rejection())?;
        }
        Ok(())
    }
}

impl<T> DeferredReply<T> {
    /// Waits for the reply to the query, which the engine sends once the event is durable.
    ///
    /// # Errors
    /// As [`Host::write`]; also [`ErrorCode::Internal`](florin_protocol::ErrorCode::Internal) if the commands
    /// were dropped unsent.
    pub async fn recv(self) -> Result<T, Rejection> {
        let Self { mut written, answer } = self;
        // The query's reply arrives last, so waiting for it alone wakes this task once.
        let answer = answer.await;
        written.try_recv().map_err(|_| stopping_rejection())??;
        answer.map_err(|_| stopping_rejection())
    }
}

impl Host {
    /// Prepares an event, and a query that the engine answers once the event is durable, for
    /// another thread to send.
    #[must_use]
    pub fn defer<T: Send + 'static>(
        &self,
        event: Event,
        question: impl FnOnce(&Engine, Timestamp) -> T + Send + 'static,
    ) -> (DeferredCommand, DeferredReply<T>) {
        let (send_ack, written) = oneshot::channel();
        let (send_answer, answer) = oneshot::channel();
        let question: EngineQuery = Box::new(move |engine, now| {
            // The receiver is gone if the client has disconnected.
            let _ = send_answer.send(question(engine, now));
        });
        let write = Command::Write(EngineRequest::Write(Box::new(event)), send_ack);
        let commands = self.mailbox.commands.clone();
        // The engine answers queries after the events before them.
        let later = DeferredCommand {
            commands,
            write_and_query: Box::new([write, Command::Query(question)]),
        };
        (later, DeferredReply { written, answer })
    }
}

#[cfg(test)]
mod tests {
    use florin_protocol::ErrorCode;

    use super::*;

    fn deferred_command(commands: &mpsc::Sender<Command>) -> DeferredCommand {
        DeferredCommand {
            commands: commands.clone(),
            write_and_query: Box::new([Command::Wake, Command::Stop]),
        }
    }

    #[tokio::test]
    async fn a_full_channel_takes_neither_command_until_it_has_capacity_for_both() {
        let (commands, mut queue) = mpsc::channel(3);
        assert!(deferred_command(&commands).try_send().is_ok());
        let full = deferred_command(&commands)
            .try_send()
            .expect_err("one slot is free, and two are needed");
        assert_eq!(queue.len(), 2);
        let waiting = tokio::spawn(full.send());
        for _ in 0..2 {
            assert!(matches!(queue.recv().await, Some(Command::Wake)));
            assert!(matches!(queue.recv().await, Some(Command::Stop)));
        }
        waiting.await.unwrap().unwrap();
        drop(queue);
        let stopped = deferred_command(&commands).try_send().expect_err("the receiver is dropped");
        assert_eq!(stopped.send().await.unwrap_err().code, ErrorCode::Internal);
    }

    #[tokio::test]
    async fn a_rejected_event_is_an_error_even_if_the_query_was_answered() {
        let rejection =
            || Rejection::new(ErrorCode::ConflictingMessage, "another update was accepted");
        let outcome = |written: Option<Result<WriteAck, Rejection>>, answer: Option<u8>| {
            let (send_written, receive_written) = oneshot::channel();
            let (send_answer, receive_answer) = oneshot::channel();
            written.map(|written| send_written.send(written).ok());
            answer.map(|answer| send_answer.send(answer).ok());
            DeferredReply { written: receive_written, answer: receive_answer }
        };
        let taken = WriteAck { now: Timestamp(1), verdict: florin_engine::EventStatus::New };
        assert_eq!(outcome(Some(Ok(taken)), Some(7)).recv().await, Ok(7));
        assert_eq!(outcome(Some(Err(rejection())), Some(7)).recv().await, Err(rejection()));
        assert_eq!(outcome(Some(Err(rejection())), None).recv().await, Err(rejection()));
        for (written, answer) in [(None, Some(7)), (None, None), (Some(Ok(taken)), None)] {
            let lost = outcome(written, answer).recv().await.unwrap_err();
            assert_eq!(lost.code, ErrorCode::Internal, "a reply is missing");
        }
    }
}
