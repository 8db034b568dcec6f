// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The folders of a trace, made safely: DIR/meta.json and DIR/ctf/.
//
// What stands at DIR is replaced only if it is a trace of ours: a folder whose meta.json says so
// and which holds nothing but the files that a trace has. Anything else is refused, and nothing in
// it is touched. Folders are 0700 and files 0600, of the calling user (base/private_file.h), also
// where root was asked by sudo; symbolic links are not followed in the last component.
#pragma once

#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"

namespace sigma {

// "cpu12", "rings", "control", and their segments "cpu12.3".
bool is_stream_name(std::string_view name);

class TraceDir {
 public:
  // An empty trace folder at `path`, with meta.json saying only what it is.
  static Result<TraceDir> create(const std::string& path);

  const std::string& path() const { return path_; }

  // A new, empty file in DIR/ctf. Before privileges are given up.
  Result<Fd> create_stream(const std::string& name);
  // Takes an empty stream's file away. Without the privilege it stays, which readers do not mind.
  void remove_stream(const std::string& name);

  // DIR/meta.json holds `text`, or what it held before. Also after privileges were dropped: then it
  // is rewritten through the descriptor that create() opened.
  Status write_meta(std::string_view text);

 private:
  TraceDir(std::string path, Fd ctf, Fd meta)
      : path_(std::move(path)), ctf_(std::move(ctf)), meta_(std::move(meta)) {}

  std::string path_;
  Fd ctf_;
  Fd meta_;
};

}  // namespace sigma
