#include "jpeg/errors.h"

#include <cstring>

#include <jerror.h>

namespace fastload {
namespace {

// jerror.h is made to be included again with another JMESSAGE. The first three macros come from a header of
// libjpeg that is not installed, for messages that are never shown. (JCOPYRIGHT: since libjpeg-turbo 3.2.)
#define JCOPYRIGHT ""
#define JCOPYRIGHT_SHORT ""
#define JVERSION ""
#define JMESSAGE(code, string) string,
const char* const kMessages[] = {
#include <jerror.h>
    nullptr};
#undef JVERSION
#undef JCOPYRIGHT_SHORT
#undef JCOPYRIGHT

constexpr int kLastMessage = static_cast<int>(sizeof(kMessages) / sizeof(kMessages[0])) - 2;

void format_message(j_common_ptr cinfo, char* buffer) {
  const jpeg_error_mgr& error = *cinfo->err;
  const bool known = error.msg_code > 0 && error.msg_code <= kLastMessage;
  const char* text = known ? kMessages[error.msg_code] : "libjpeg message of an unknown number";
  const auto& i = error.msg_parm.i;
  if (std::strstr(text, "%s")) {
    std::snprintf(buffer, JMSG_LENGTH_MAX, text, error.msg_parm.s);
  } else {
    std::snprintf(buffer, JMSG_LENGTH_MAX, text, i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7]);
  }
}

void reset(j_common_ptr cinfo) {
  cinfo->err->num_warnings = 0;
  cinfo->err->msg_code = 0;
}

}  // namespace

jpeg_error_mgr* quiet_errors(jpeg_error_mgr* errors) {
  *errors = jpeg_error_mgr{};
  errors->emit_message = [](j_common_ptr warned, int level) {
    if (level < 0) ++warned->err->num_warnings;
  };
  errors->output_message = [](j_common_ptr) {};
  errors->format_message = format_message;
  errors->reset_error_mgr = reset;
  // Some versions of libjpeg read this table themselves.
  errors->jpeg_message_table = kMessages;
  errors->last_jpeg_message = kLastMessage;
  return errors;
}

}  // namespace fastload
