package org.apache.spark.sql.sparkckpt.inband

import java.io.{BufferedInputStream, BufferedOutputStream, ByteArrayOutputStream, DataInputStream, DataOutputStream, EOFException, IOException}
import java.net.{InetAddress, ServerSocket, Socket}
import java.nio.charset.StandardCharsets.UTF_8
import java.security.{MessageDigest, SecureRandom}
import java.util.HexFormat

import scala.util.control.NonFatal

import org.apache.arrow.vector.VectorSchemaRoot
import org.apache.arrow.vector.ipc.ArrowStreamWriter

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.arrow.ArrowWriter
import org.apache.spark.sql.execution.python.inband.InBandSession
import org.apache.spark.sql.util.ArrowUtils

/**
 * Hands out state that was not sent beside the rows of its key, whole, to the Python worker of one
 * call. It answers from a thread of its own while the task waits for the worker; both use the store
 * under the same lock, and no answer is begun once the server is closed.
 */
final class FetchServer(
    state: FetchableState, inFlight: InFlightKeys, session: InBandSession, lock: Object) extends Logging {
  private val socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress)
  @volatile private var isOpen = true
  @volatile private var connection: Socket = _

  val port: Int = socket.getLocalPort
  val secret: String = FetchServer.newSecret()

  private val thread = new Thread("sparkckpt state fetches") {
    setDaemon(true)
    override def run(): Unit = serve()
  }
  thread.start()

  /** The store may be closed after this. */
  def close(): Unit = lock.synchronized {
    isOpen = false
    socket.close()
    Option(connection).foreach(_.close())
  }

  private def serve(): Unit =
    try {
      while (isOpen) {
        connection = socket.accept()
        connection.setTcpNoDelay(true)
        if (isOpen) answer(connection)
      }
    } catch {
      case _: IOException if !isOpen =>
      case NonFatal(e) => logWarning("Handing out state to Python has ended", e)
    }

  /** A stranger is cut off, and so is not the only one who may connect. */
  private def answer(connection: Socket): Unit = {
    val in = new DataInputStream(new BufferedInputStream(connection.getInputStream))
    val out = new DataOutputStream(new BufferedOutputStream(connection.getOutputStream, 1 << 16))
    try {
      if (knowsSecret(in)) {
        while (true) {
          reply(in.readLong(), in.readInt(), out)
          out.flush()
        }
      }
    } catch {
      case _: EOFException =>
    } finally connection.close()
  }

  private def knowsSecret(in: DataInputStream): Boolean = {
    val expected = secret.getBytes(UTF_8)
    in.readInt() == expected.length &&
      MessageDigest.isEqual(in.readNBytes(expected.length), expected)
  }

  private def reply(number: Long, variable: Int, out: DataOutputStream): Unit =
    try {
      val bytes = lock.synchronized {
        if (!isOpen) throw new IOException("the task has ended")
        stream(number, variable)
      }
      out.writeLong(bytes.length)
      out.write(bytes)
    } catch {
      case NonFatal(e) =>
        val message = e.toString.getBytes(UTF_8)
        out.writeLong(-1)
        out.writeInt(message.length)
        out.write(message)
    }

  /** All that a key has in a variable, as an Arrow stream. */
  private def stream(number: Long, variable: Int): Array[Byte] = {
    val key = inFlight.get(number).getOrElse {
      throw new IOException(s"key $number is not being processed")
    }
    val schema = state.fetchSchema(variable)
    val allocator = ArrowUtils.rootAllocator.newChildAllocator("sparkckpt state fetch", 0, Long.MaxValue)
    try {
      val root = VectorSchemaRoot.create(
        ArrowUtils.toArrowSchema(schema, session.timeZoneId, largeVarTypes = session.largeVarTypes),
        allocator)
      try {
        val bytes = new ByteArrayOutputStream()
        val writer = new ArrowStreamWriter(root, null, bytes)
        val rows = ArrowWriter.create(root)
        writer.start()
        val fetched = state.fetch(key, variable)
        while (fetched.hasNext) {
          var count = 0
          while (count < FetchServer.RowsPerBatch && fetched.hasNext) {
            rows.write(fetched.next())
            count += 1
          }
          rows.finish()
          writer.writeBatch()
          rows.reset()
        }
        writer.end()
        bytes.toByteArray
      } finally root.close()
    } finally allocator.close()
  }
}

object FetchServer {
  private val RowsPerBatch = 16384
  private val SecretBytes = 16
  private val random = new SecureRandom()

  private def newSecret(): String = {
    val bytes = new Array[Byte](SecretBytes)
    random.nextBytes(bytes)
    HexFormat.of().formatHex(bytes)
  }
}
