#!/usr/bin/env bash
# Makes the two instance profiles that cluster.yaml names: launch/aws/roles.sh BUCKET-OF-DATA BUCKET-OF-RUNS
# Needs the AWS command line, and rights over IAM; once for an account.
set -euo pipefail
[[ $# == 2 ]] || { sed -n '2,3s/^# //p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
trust='{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}]}'

fill() { sed -e "s/BUCKET-OF-DATA/$1/g" -e "s/BUCKET-OF-RUNS/$2/g" "$3"; }

for role in ingest-node ingest-head; do
    aws iam create-role --role-name "$role" --assume-role-policy-document "$trust"
    aws iam put-role-policy --role-name "$role" --policy-name data \
        --policy-document "$(fill "$1" "$2" "$here/ingest-node.json")"
    aws iam create-instance-profile --instance-profile-name "$role"
    aws iam add-role-to-instance-profile --instance-profile-name "$role" --role-name "$role"
done
aws iam put-role-policy --role-name ingest-head --policy-name nodes --policy-document "file://$here/ingest-head.json"
