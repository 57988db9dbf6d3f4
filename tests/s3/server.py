"""A service that speaks S3, for the tests: moto, which checks signatures and rights from its fifth request on.

Prints one line of JSON, then serves until its input ends.
"""

import json
import logging
import os
import sys

# Making the bucket, the account, its key and its rights.
REQUESTS_OF_OURS = 4
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = str(REQUESTS_OF_OURS)
os.environ["NO_PROXY"] = "*"

import boto3  # noqa: E402
from moto.server import ThreadedMotoServer  # noqa: E402

BUCKET = "florin"
# Of any bucket, so that one that is not there is missing and not forbidden.
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
    nobody = {"aws_access_key_id": "nobody", "aws_secret_access_key": "nothing"}
    known = {"endpoint_url": endpoint, "region_name": "us-east-1", **nobody}
    boto3.client("s3", **known).create_bucket(Bucket=BUCKET)
    iam = boto3.client("iam", **known)
    iam.create_user(UserName="coordinator")
    key = iam.create_access_key(UserName="coordinator")["AccessKey"]
    rights = json.dumps(RIGHTS)
    iam.put_user_policy(UserName="coordinator", PolicyName="blobs", PolicyDocument=rights)
    said = {
        "endpoint": endpoint,
        "bucket": BUCKET,
        "key": key["AccessKeyId"],
        "secret": key["SecretAccessKey"],
    }
    print(json.dumps(said), flush=True)
    sys.stdin.read()
    os._exit(0)


main()
