"""Small documents of each kind, made here."""

import zipfile
from io import BytesIO

from openpyxl import Workbook
from pypdf import PdfReader, PdfWriter

_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def pdf(*pages):
    """A PDF with these texts on its pages; "" is a page without any."""
    streams = [
        b"BT /F1 12 Tf 72 720 Td 14 TL "
        + b" ".join(f"({line}) Tj T*".encode("latin-1") for line in page.split("\n"))
        + b" ET"
        if page
        else b""
        for page in pages
    ]
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, stream in enumerate(streams):
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % (5 + 2 * number)
        )
        objects.append(b"<< /Length %d >>\nstream\n%b\nendstream" % (len(stream), stream))
    data, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    tail = b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (
        len(objects) + 1,
        len(data),
    )
    return data + head + table + tail


def encrypted_pdf(text, *, password, algorithm="AES-256"):
    """A PDF that is opened with this password."""
    writer = PdfWriter(PdfReader(BytesIO(pdf(text))))
    writer.encrypt(password, owner_password="own", algorithm=algorithm)
    file = BytesIO()
    writer.write(file)
    return file.getvalue()


def docx(*pages, rows=()):
    """A Word document with paragraphs on pages, and then a table."""
    paragraphs = []
    for number, page in enumerate(pages):
        before = '<w:r><w:br w:type="page"/></w:r>' if number else ""
        paragraphs.append(f"<w:p>{before}<w:r><w:t>{page}</w:t></w:r></w:p>")
    table = "".join(
        "<w:tr>"
        + "".join(f"<w:tc><w:p><w:r><w:t>{cell}</w:t></w:r></w:p></w:tc>" for cell in row)
        + "</w:tr>"
        for row in rows
    )
    body = "".join(paragraphs) + (f"<w:tbl>{table}</w:tbl>" if rows else "")
    whole = f'<w:document xmlns:w="{_WORD}"><w:body>{body}</w:body></w:document>'
    return zipped({"[Content_Types].xml": "<Types/>", "word/document.xml": whole})


def xlsx(**sheets):
    """A spreadsheet with these rows on sheets of these names."""
    book = Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    file = BytesIO()
    book.save(file)
    return file.getvalue()


def zipped(files):
    """A zip archive of these, by name."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return file.getvalue()
