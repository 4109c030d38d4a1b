package org.apache.spark.sql.sparkckpt.recovery

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.streaming.StreamingQueryListener.QueryStartedEvent

/**
 * Ends a query that must not start, before it has written an entry to any of its logs. Spark swallows
 * what a listener throws unless it is fatal, and a `LinkageError` is: it passes the listener bus,
 * reaches the stream's own catch, and is the cause of the query's exception.
 */
final class QueryStartFailure private (message: String, cause: Throwable)
  extends LinkageError(message, cause)

object QueryStartFailure extends Logging {
  /**
   * Does what has to succeed before the query may start; if it fails, so does the query, with the
   * same message. Only for `onQueryStarted`, which runs on the stream's own thread.
   *
   * A query that is stopped meanwhile ends by itself before its first batch, if nothing is thrown.
   * Its thread's interrupt must not be seen by the listener bus, which would drop the listener.
   */
  def orStop(query: StreamExecution, event: QueryStartedEvent)(body: => Unit): Unit = {
    try body catch {
      case e @ (NonFatal(_) | _: InterruptedException) if !query.isActive =>
        logInfo(s"The query of ${query.resolvedCheckpointRoot} was stopped while it started", e)
      case e @ (NonFatal(_) | _: InterruptedException) => stop(query, event, e)
    }
    if (!query.isActive) Thread.interrupted()
  }

  private def stop(query: StreamExecution, event: QueryStartedEvent, error: Throwable): Nothing = {
    val failure = new QueryStartFailure(Option(error.getMessage).getOrElse(error.toString), error)
    // The bus goes no further; Spark's UI cannot show the end of a query whose start it has missed.
    query.sparkSession.sharedState.streamingQueryStatusListener.foreach(_.onQueryStarted(event))
    // Spark rethrows what is fatal at the end of the thread, after it has logged and recorded it. A
    // handler of the application's might take it for a reason to exit.
    Thread.currentThread().setUncaughtExceptionHandler((thread, thrown) =>
      if (thrown ne failure) thread.getThreadGroup.uncaughtException(thread, thrown))
    throw failure
  }
}
