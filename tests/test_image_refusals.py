"""What servers say of images that they don't take, in their own words, and what it means."""

import pytest

from nanoloop.errors import BadImage, ContextTooLong, ImagesRefused, OverQuota, UnknownModel
from nanoloop.providers.failures import Asked, refusal

NONE_TAKEN = [
    "Invalid content type. image_url is only supported by certain models.",
    "No endpoints found that support image input",
    "some/model is not a multimodal model",
    "At most 0 image(s) may be provided in one prompt.",
    "image input is not supported - hint: you may need to provide the mmproj",
    "image input is not supported by this server",
    'Failed to parse messages: Unsupported content part type: "image_url"; messages = [',
    "unsupported content[].type",
    "this model does not support image input (ref: b8)",
    "this model is missing data required for image input",
    "messages[7]: unknown variant `image_url`, expected `text` at line 1 column 114708",
    "Image input is not enabled for this model",
    "'some-model' does not support image input.",
    "Model does not support images. Please use a model that does.",
    "Image inputs are not supported by this model.",
    "Image input modality is not enabled for models/some-model",
    "This model doesn't support the image content block that you provided.",
    "Only 'text' content type is supported.",
    "Content type 'image_url' is not supported by this model",
]
ONLY_STRINGS = [
    "messages[0].content must be a string",
    "must be satisfied[('messages.0.content' : value must be a string)]",
    "messages[2]: invalid type: sequence, expected a string at line 1 column 2901",
    "data did not match any variant of untagged enum ChatCompletionRequestContent at line 1",
    "Unexpected item type in content.",
    "json: cannot unmarshal array into Go struct field Message.messages.content of type string",
]
ONE_UNREAD = [
    "Could not process image",
    "messages.0.content.2.image.source.base64: image exceeds 5 MB maximum: 15908784 > 5242880",
    "At least one of the image dimensions exceed max allowed size: 8000 pixels",
    "Image does not match the provided media type image/png",
    "You uploaded an unsupported image. Please make sure your image has of one the following",
    "invalid_image_format",
    "image_parse_error",
    "The image data you provided does not represent a valid image. Please check your input.",
    "Invalid base64 image_url.",
    "Unable to process input image. Please retry or report",
    "Provided image is not valid",
    "cannot identify image file <_io.BytesIO object>",
    "image file is truncated (12 bytes not processed)",
    "Failed to load image or audio file",
    "failed to decode image bytes",
    "image: unknown format",
    "Unsupported image format",
    "Images of type image/heic are not supported",
    "This model does not support image format image/heic",
]
TOO_MANY = [
    ("At most 1 image(s) may be provided in one request.", 1),
    ("Too many images provided. This model supports up to 5 images", 5),
    ("Too many images and documents: 101 + 0 > 100", 100),
    ("Too many images in request: 9. Max allowed: 8", 8),
    ("too many images", None),
]
UNRELATED = [
    "tools need --jinja",
    "The model is overloaded",
    "This model does not support tools",
    "Failed to load model",
    "No endpoints found that support tool use",
    "temperature is not supported with this model",
    "Could not parse the JSON body of your request",
    "content must not be empty",
]


def said(words, status=400, body=b'{"type":"image_url"}'):
    asked = Asked(where="http://x", model="m", has_key=True, secrets=(), body=body)
    given = words if isinstance(words, dict) else {"error": {"message": words}}
    return refusal(asked, status=status, said=given)


@pytest.mark.parametrize("words", NONE_TAKEN)
@pytest.mark.parametrize("status", [400, 404, 415, 422, 500, 501, None])
def test_a_model_that_takes_no_images_is_known_by_its_words(words, status):
    error = said(words, status)
    assert isinstance(error, ImagesRefused)
    assert error.most == 0


@pytest.mark.parametrize("words", ONLY_STRINGS)
def test_so_is_a_server_that_wants_strings_but_only_if_it_was_sent_an_image(words):
    assert isinstance(said(words), ImagesRefused)
    assert not isinstance(said(words, body=b'{"type":"text"}'), ImagesRefused)


@pytest.mark.parametrize("words", ONE_UNREAD)
@pytest.mark.parametrize("status", [400, 422, 500, None])
def test_one_image_that_can_not_be_read_is_told_apart(words, status):
    assert isinstance(said(words, status), BadImage)


@pytest.mark.parametrize(("words", "most"), TOO_MANY)
def test_how_many_images_it_takes_is_read(words, most):
    error = said(words)
    assert isinstance(error, ImagesRefused)
    assert error.most == most


@pytest.mark.parametrize("words", UNRELATED)
def test_other_refusals_say_nothing_of_images(words):
    assert not isinstance(said(words), (BadImage, ImagesRefused))


def test_the_words_of_a_server_behind_a_router_count():
    raw = '{"error": {"message": "Provided image is not valid."}}'
    error = {"message": "Provider returned error", "metadata": {"raw": raw}}
    assert isinstance(said({"error": error}), BadImage)


def test_what_was_sent_and_is_repeated_far_behind_does_not_count():
    assert not isinstance(said("Oops. " * 100 + "it is not a multimodal model"), ImagesRefused)


@pytest.mark.parametrize(
    ("words", "status", "kind"),
    [
        ("Too many requests with images", 429, OverQuota),
        ("maximum context length is 9: images count too", 400, ContextTooLong),
        ("model_not_found", 404, UnknownModel),
    ],
)
def test_what_is_known_by_other_words_stays_so(words, status, kind):
    assert isinstance(said(words, status), kind)
