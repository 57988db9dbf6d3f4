"""An S3 service for the tests: moto, which checks signatures and permissions from its fifth request on.

Prints one line of JSON, then serves until its standard input closes.
"""

import json
import logging
import os
import sys

# Requests that create the bucket, the user, its key and its policy.
REQUESTS_OF_OURS = 4
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = str(REQUESTS_OF_OURS)
os.environ["NO_PROXY"] = "*"

import boto3  # noqa: E402
from moto.server import ThreadedMotoServer  # noqa: E402

BUCKET = "florin"
# Permissions for every bucket, so that an unknown bucket is reported as missing, not as forbidden.
RIGHTS = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Action": [
                "s3:PutObject",
                "s3:GetObject",
                "s3:AbortMultipartUpload",
                "s3:ListBucket",
            ],
            "Resource": "*",
        }
    ],
}


def main():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    unsigned = {"aws_access_key_id": "unsigned", "aws_secret_access_key": "nothing"}
    known = {"endpoint_url": endpoint, "region_name": "us-east-1", **unsigned}
    boto3.client("s3", **known).create_bucket(Bucket=BUCKET)
    iam = boto3.client("iam", **known)
    iam.create_user(UserName="coordinator")
    key = iam.create_access_key(UserName="coordinator")["AccessKey"]
    rights = json.dumps(RIGHTS)
    iam.put_user_policy(UserName="coordinator", PolicyName="blobs", PolicyDocument=rights)
    settings = {
        "endpoint": endpoint,
        "bucket": BUCKET,
        "key": key["AccessKeyId"],
        "secret": key["SecretAccessKey"],
    }
    print(json.dumps(settings), flush=True)
    sys.stdin.read()
    os._exit(0)


main()
