package org.apache.spark.sql.sparkckpt.coordinator

import java.io.File
import java.nio.charset.StandardCharsets.UTF_8

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.json4s.{JBool, JInt, JString}

import org.apache.spark.sql.sparkckpt.{FailingFileSystem, PuttingFileSystem, UnreplacingFileSystem}
import org.apache.spark.sql.sparkckpt.format.AtomicReplacement

/** Has the driver serve the coordinator's requests on file systems of all kinds. */
class StorageHarness {
  private val conf = new Configuration
  conf.set("fs.unreplacing.impl", classOf[UnreplacingFileSystem].getName)
  conf.set("fs.putting.impl", classOf[PuttingFileSystem].getName)
  conf.set("fs.failing.impl", classOf[FailingFileSystem].getName)
  private val storage = new StorageService(conf)

  /** The message of the error there was, or nothing. */
  def replace(path: String, text: String): String = {
    val request = Frame("storage", "id" -> JInt(1), "op" -> JString("create"),
      "path" -> JString(path), "overwrite" -> JBool(true)).copy(payload = text.getBytes(UTF_8))
    errorOf(storage.serve(request))
  }

  /** The error of looking at a file. */
  def look(path: String): String = errorOf(storage.serve(
    Frame("storage", "id" -> JInt(1), "op" -> JString("info"), "path" -> JString(path))))

  /** Fails after the first part of the content. */
  def replaceInPart(path: String, part: String): Unit =
    AtomicReplacement.write(new Path(path), conf) { out =>
      out.write(part.getBytes(UTF_8))
      throw new IllegalStateException("the source has ended")
    }

  /** How often the file was missing while it was replaced again and again. */
  def timesMissing(file: String, replacements: Int): Int = {
    @volatile var done = false
    var missing = 0
    val reader = new Thread(() => while (!done) if (!new File(file).exists()) missing += 1)
    reader.start()
    (1 to replacements).foreach(i => replace(file, s"content $i"))
    done = true
    reader.join()
    missing
  }

  private def errorOf(reply: Frame): String = reply.header \ "error" \ "message" match {
    case JString(message) => message
    case _ => ""
  }
}
