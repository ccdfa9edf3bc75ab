/*
 * base/documents.h
 *		How long a document is as text; the limit for one, idemq.max_document.
 */
#ifndef IDEMQ_BASE_DOCUMENTS_H
#define IDEMQ_BASE_DOCUMENTS_H

#include "base/settings.h"

#define DOCUMENT_MOST ((Size) IDEMQ_MAX_DOCUMENT_KB * 1024)

extern bool idemq_documents_fit(const Datum *documents, int count, Size limit);
extern void idemq_check_document(const char *name, Datum document, Size reserve);
extern void idemq_check_text(const char *name, Datum value);

#endif
